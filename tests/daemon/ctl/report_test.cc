// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/ctl/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "daemon/ctl/table.h"

namespace dmuon::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TableTest, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({{"name"}, {"n", Align::kRight}, {"note"}});
  table.Add({"a", "1000", "x"});
  table.Add({"longer", "7"});
  EXPECT_EQ(table.Text(),
            "name       n  note\n"
            "a       1000  x\n"
            "longer     7\n");
}

TEST(TableTest, NumbersHaveAUnitThatFits) {
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText(uint64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(SecondsText(0), "0 s");
  EXPECT_EQ(SecondsText(0.000012), "12 us");
  EXPECT_EQ(SecondsText(0.00125), "1.25 ms");
  EXPECT_EQ(SecondsText(90), "90.00 s");
}

v1::GetNodeStatusResponse MakeNode() {
  v1::GetNodeStatusResponse node;
  node.set_node_id("box");
  node.set_slots(2);
  node.set_threads_per_slot(1);
  node.set_metrics_address("127.0.0.1:9");
  v1::NodeJobStatus* const job = node.add_jobs();
  job->set_job_id("demo");
  job->set_world_size(3);
  job->add_attached_ranks(0);
  job->add_attached_ranks(2);
  job->set_last_step(41);
  job->set_newton_schulz_calls(820);
  job->set_state("waits for rank 1");
  return node;
}

v1::GetClusterStatusResponse MakeCluster() {
  v1::GetClusterStatusResponse cluster;
  cluster.set_highest_generation(7);
  cluster.add_nodes()->mutable_node()->set_node_id("box");
  v1::JobStatus* const job = cluster.add_jobs();
  job->set_job_id("demo");
  job->set_world_size(3);
  job->set_registered_ranks(2);
  return cluster;
}

TEST(StatusTest, ShowsNodeAndCluster) {
  const std::string text = StatusText(MakeNode(), MakeCluster());
  EXPECT_THAT(text, HasSubstr("slots        2 with 1 threads each\n"));
  EXPECT_THAT(text, HasSubstr("metrics      http://127.0.0.1:9/metrics\n"));
  EXPECT_THAT(text, HasSubstr("cluster: 1 nodes, 1 jobs, highest generation 7\n"));
}

TEST(StatusTest, SaysWhatIsNotThere) {
  EXPECT_EQ(StatusText({}, MakeCluster()).substr(0, 13), "no node here\n");
  EXPECT_THAT(StatusText(MakeNode(), {}), HasSubstr("no coordinator here\n"));
  EXPECT_EQ(StatusJson({}, {}), "{\"node\":null,\"cluster\":null}\n");
}

TEST(StatusTest, JsonUsesTheNamesOfTheProtoAndShowsZeros) {
  const std::string json = StatusJson(MakeNode(), {});
  EXPECT_THAT(json, HasSubstr("\"node_id\":\"box\""));
  EXPECT_THAT(json, HasSubstr("\"uptime_seconds\":0"));
}

TEST(JobsTest, ShowsBothViewsOfAJob) {
  const std::string text = JobsText(MakeNode(), MakeCluster());
  EXPECT_THAT(text, HasSubstr("demo      2/3"));
  EXPECT_THAT(text, HasSubstr("820"));
  EXPECT_THAT(text, HasSubstr("waits for rank 1\n"));
  EXPECT_THAT(text, HasSubstr("registered"));
}

TEST(JobsTest, SaysThatThereAreNone) {
  v1::GetNodeStatusResponse node;
  node.set_node_id("box");
  EXPECT_EQ(JobsText(node, v1::GetClusterStatusResponse()),
            "node box holds no job\n\nthe coordinator knows no job\n");
  EXPECT_EQ(JobsJson({}, {}), "{\"node\":[],\"cluster\":[]}\n");
}

TEST(JobsTest, ShowsCheckpointsWhereThereAreAny) {
  v1::GetNodeStatusResponse node = MakeNode();
  EXPECT_THAT(JobsText(node, {}), Not(HasSubstr("checkpoint")));
  v1::CheckpointStatus& last = *node.mutable_jobs(0)->mutable_checkpoint();
  last.set_error("node 'b': disk full");
  EXPECT_THAT(JobsText(node, {}), HasSubstr("demo  -              -    -  -        node 'b': disk full\n"));
  last.set_name("best");
  last.set_step(40);
  last.set_age_seconds(90);
  last.set_progress("later, 40 %");
  last.clear_error();
  EXPECT_THAT(JobsText(node, {}),
              HasSubstr("\n\n"
                        "job   checkpoint  step      age  writing      last failure\n"
                        "demo  best          40  90.00 s  later, 40 %  -\n"));
}

TEST(JobsTest, ShowsCopiesWhereThereAreAny) {
  v1::GetNodeStatusResponse node = MakeNode();
  EXPECT_THAT(JobsText(node, {}), Not(HasSubstr("copies")));
  v1::ReplicationStatus& copies = *node.mutable_jobs(0)->mutable_replication();
  copies.set_buddy("node-1");
  copies.set_ward("node-2");
  copies.set_copied_step(41);
  copies.set_copy_bytes(2048);
  copies.set_recoveries(3);
  EXPECT_THAT(JobsText(node, {}), HasSubstr("\n\n"
                                            "job   copied to  step  keeps copies of   a copy  recoveries\n"
                                            "demo  node-1       41  node-2           2.0 KiB           3\n"));
}

v1::ListedCheckpoint MakeCheckpoint() {
  v1::ListedCheckpoint listed;
  v1::Checkpoint& checkpoint = *listed.mutable_checkpoint();
  checkpoint.set_job_id("demo");
  checkpoint.set_name("step-40");
  checkpoint.set_step(40);
  checkpoint.set_generation(3);
  checkpoint.set_automatic(true);
  checkpoint.set_version("1.2");
  for (const std::string node : {"a", "b"}) {
    v1::CheckpointPart& part = *checkpoint.add_parts();
    part.set_node_id(node);
    part.set_file(node + ".safetensors");
    part.set_bytes(1536);
    part.set_entries(2);
  }
  listed.add_absent_files("b.safetensors");
  return listed;
}

TEST(CheckpointTest, ListsWhatIsMissing) {
  v1::ListCheckpointsResponse response;
  response.set_directory("/d");
  EXPECT_EQ(CheckpointsText(response), "no checkpoint in /d\n");
  *response.add_checkpoints() = MakeCheckpoint();
  *response.add_checkpoints() = MakeCheckpoint();
  response.mutable_checkpoints(1)->mutable_checkpoint()->set_automatic(false);
  response.mutable_checkpoints(1)->clear_absent_files();
  EXPECT_EQ(CheckpointsText(response),
            "in /d\n"
            "job   name     step  made         parts     size  missing\n"
            "demo  step-40    40  by schedule    1/2  3.0 KiB  b.safetensors\n"
            "demo  step-40    40  by name        2/2  3.0 KiB  -\n");
}

TEST(CheckpointTest, ShowsPartsAndArrays) {
  v1::GetCheckpointResponse response;
  *response.mutable_listed() = MakeCheckpoint();
  EXPECT_THAT(CheckpointText(response), HasSubstr("no array is here\n"));
  v1::CheckpointEntry& entry = *response.add_entries();
  entry.set_key("wq/momentum[0:64, 0:32]");
  entry.set_file("a.safetensors");
  entry.add_shape(64);
  entry.add_shape(32);
  entry.set_optimizer("muon");
  entry.set_updates(40);
  EXPECT_EQ(CheckpointText(response),
            "checkpoint  step-40\n"
            "job         demo\n"
            "step        40\n"
            "generation  3\n"
            "made        by schedule, with dmuon 1.2\n"
            "size        3.0 KiB in 2 parts\n"
            "\n"
            "part           node  arrays     size\n"
            "a.safetensors  a          2  1.5 KiB  here\n"
            "b.safetensors  b          2  1.5 KiB  missing\n"
            "\n"
            "array                    shape  optimizer  updates  node\n"
            "wq/momentum[0:64, 0:32]  64x32  muon            40  a\n");
}

v1::UnitTime MeasuredTime(v1::Form form, v1::Precision precision, double seconds, double error) {
  v1::UnitTime time;
  time.mutable_optimizer()->mutable_muon()->set_variant(v1::VARIANT_NORMUON);
  time.set_rows(64);
  time.set_cols(8);
  time.mutable_method()->set_form(form);
  time.mutable_method()->set_precision(precision);
  time.set_seconds(seconds);
  time.set_error(error);
  return time;
}

TEST(KernelsTest, MarksTheFastestOfEachPrecisionThatMayBeUsed) {
  v1::GetKernelsResponse kernels;
  kernels.set_backend("cpu");
  kernels.set_device("a processor");
  kernels.set_slots(2);
  kernels.set_threads_per_slot(4);
  kernels.set_progress("job demo: 3 of 7, 64 x 8");
  *kernels.add_times() = MeasuredTime(v1::FORM_STANDARD, v1::PRECISION_FP32, 0.002, 0.0);
  *kernels.add_times() = MeasuredTime(v1::FORM_STANDARD, v1::PRECISION_BF16, 0.001, 0.012);
  *kernels.add_times() = MeasuredTime(v1::FORM_GRAM, v1::PRECISION_FP32, 0.0015, 1e-5);
  *kernels.add_times() = MeasuredTime(v1::FORM_GRAM, v1::PRECISION_BF16, 0.0005, 0.2);
  v1::UnitTime& elementwise = *kernels.add_times();
  elementwise.mutable_optimizer()->mutable_adamw();
  elementwise.set_rows(1);
  elementwise.set_cols(100);
  elementwise.set_seconds(0.01);
  EXPECT_EQ(KernelsText(kernels),
            "backend cpu on a processor, 2 slots of 4 threads at work\n"
            "kept in memory\n"
            "measuring job demo: 3 of 7, 64 x 8\n"
            "\n"
            "optimizer   unit  method           time     error\n"
            "normuon     64x8  standard fp32    2 ms     0.0e+00\n"
            "normuon     64x8  standard bf16    1 ms  *  1.2e-02\n"
            "normuon     64x8  gram fp32      1.5 ms  *  1.0e-05\n"
            "normuon     64x8  gram bf16      500 us     2.0e-01, not used\n"
            "adamw      1x100  -               10 ms  *  -\n");
}

TEST(KernelsTest, SaysThatNothingWasMeasured) {
  EXPECT_THAT(KernelsText({}), HasSubstr("nothing was measured yet\n"));
}

class PlanTest : public ::testing::Test {
 protected:
  PlanTest() {
    response_.mutable_plan()->set_job_id("demo");
    response_.mutable_plan()->set_generation(4);
    response_.mutable_plan()->add_nodes("box");
    response_.mutable_plan()->add_slots(3);
    response_.mutable_plan()->set_makespan_seconds(0.003);
    response_.mutable_plan()->set_lower_bound_seconds(0.003);
  }
  void AddUnit(const std::string& name, int64_t rows, int64_t offset, int64_t length,
               uint32_t slot, double cost) {
    v1::Tensor* const tensor = response_.mutable_job()->add_tensors();
    tensor->set_name(name);
    tensor->add_shape(rows);
    tensor->add_shape(8);
    v1::Unit* const unit = response_.mutable_plan()->add_units();
    unit->set_tensor(static_cast<uint32_t>(response_.job().tensors_size() - 1));
    unit->mutable_box()->add_offset(offset);
    unit->mutable_box()->add_offset(0);
    unit->mutable_box()->add_length(length);
    unit->mutable_box()->add_length(8);
    unit->add_owners()->set_slot(slot);
    unit->set_cost_seconds(cost);
  }
  v1::GetPlanResponse response_;
};

TEST_F(PlanTest, ShowsUnitsSlotsAndBalance) {
  AddUnit("wq", 64, 0, 64, 0, 0.003);
  AddUnit("emb", 32, 16, 16, 1, 0.001);
  for (const v1::Form form : {v1::FORM_GRAM, v1::FORM_STANDARD, v1::FORM_GRAM}) {
    v1::Method* method = response_.mutable_plan()->mutable_units(0)->add_methods();
    method->set_form(form);
    method->set_precision(v1::PRECISION_BF16);
  }
  const std::string text = PlanText(response_);
  EXPECT_THAT(text, HasSubstr("job demo, generation 4"));
  EXPECT_THAT(text, HasSubstr("wq       64x8  all        box/0         3  gram bf16, standard bf16  3 ms  75.0 %\n"));
  EXPECT_THAT(text, HasSubstr("emb      32x8  16:32,0:8  box/1         0  -                         1 ms  25.0 %\n"));
  EXPECT_THAT(text, HasSubstr("box/2      0   0 s   0.0 %\n")) << "an idle slot is shown";
  EXPECT_THAT(text, HasSubstr("makespan 3 ms, lower bound 3 ms, balance 2.250"));
}

TEST_F(PlanTest, SaysTopKOfMatricesWithoutNewtonSchulz) {
  AddUnit("wq", 64, 0, 64, 0, 0.003);
  response_.mutable_job()->add_groups()->mutable_muon()->set_variant(v1::VARIANT_NUMUON);
  response_.mutable_plan()->mutable_units(0)->add_methods()->set_form(v1::FORM_STANDARD);
  EXPECT_THAT(PlanText(response_), HasSubstr("wq       64x8  all  box/0         1  top-k fp32  3 ms"));
}

TEST_F(PlanTest, ShowsWhatEachLinkCarriesAndExplainsItByBucket) {
  response_.mutable_plan()->add_nodes("crate");
  for (const uint32_t bucket : {0U, 1U}) {
    v1::LinkLoad* const load = response_.add_links();
    load->set_to(1);
    load->set_bucket(bucket);
    load->set_gradient_bytes(1024);
    load->set_parameter_bytes(2048);
  }
  EXPECT_THAT(PlanText(response_), HasSubstr("box -> crate     all    2.0 KiB     4.0 KiB\n"));
  EXPECT_THAT(PlanText(response_), Not(HasSubstr("1.0 KiB")));
  EXPECT_THAT(PlanText(response_, true), HasSubstr("box -> crate       1    1.0 KiB     2.0 KiB\n"));
}

TEST_F(PlanTest, AnEmptyPlanHasNoBalance) {
  EXPECT_THAT(PlanText(response_), HasSubstr("balance -"));
}

TEST_F(PlanTest, IndicesOutOfRangeAreShownAsTheyAre) {
  AddUnit("wq", 64, 0, 64, 0, 0.003);
  response_.mutable_plan()->mutable_units(0)->set_tensor(99);
  response_.mutable_plan()->mutable_units(0)->mutable_owners(0)->set_node(5);
  EXPECT_THAT(PlanText(response_), HasSubstr("tensor 99"));
  EXPECT_THAT(PlanText(response_), HasSubstr("node 5/0"));
}

TEST(VersionTest, AnAbsentDaemonIsNull) {
  EXPECT_EQ(VersionJson("1 \"x\"", std::nullopt), "{\"dmuonctl\":\"1 \\\"x\\\"\",\"daemon\":null}\n");
  EXPECT_EQ(VersionText("1", "2"), "dmuonctl 1\ndaemon   2\n");
}

v1::GetClusterStatusResponse Draining(uint64_t successor, uint64_t units) {
  v1::GetClusterStatusResponse cluster;
  v1::NodeStatus* const node = cluster.add_nodes();
  node->mutable_node()->set_node_id("box");
  node->set_units(units);
  node->set_drained(true);
  v1::JobStatus* const job = cluster.add_jobs();
  job->set_job_id("demo");
  job->set_generation(1);
  job->set_successor_generation(successor);
  job->set_moving_units(successor == 0 ? 0 : 5);
  return cluster;
}

TEST(DrainTest, SaysWhatIsAwaitedUntilTheNodeOwnsNothing) {
  EXPECT_EQ(*AwaitedByDrain(Draining(2, 5), "box", false), "job 'demo' to hand 5 units over, for generation 2");
  EXPECT_EQ(*AwaitedByDrain(Draining(0, 5), "box", false), "a plan without the 5 units of node 'box'");
  EXPECT_EQ(*AwaitedByDrain(Draining(0, 0), "box", false), "");
  EXPECT_EQ(*AwaitedByDrain(Draining(0, 5), "box", true), "");
  EXPECT_THAT(DrainedText(Draining(0, 0), "box", false), HasSubstr("owns nothing"));
  EXPECT_THAT(DrainedText(Draining(0, 0), "other", false), HasSubstr("no member now"));
  EXPECT_THAT(StatusText({}, Draining(0, 0)), HasSubstr("drained"));
}

TEST(DrainTest, AHandoverThatFailedIsAnErrorThatNamesJobAndReason) {
  v1::GetClusterStatusResponse cluster = Draining(0, 5);
  cluster.mutable_jobs(0)->set_handover_failure("no memory");
  const auto awaited = AwaitedByDrain(cluster, "box", false);
  EXPECT_EQ(awaited.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(awaited.status().message(), "job 'demo' keeps generation 1: no memory");
}

}  // namespace
}  // namespace dmuon::ctl
