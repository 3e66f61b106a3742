// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "daemon/coordinator/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/daemon/coordinator/requests.h"
#include "tests/daemon/plan/job_builder.h"
#include "tests/support/many_tensors.h"
#include "wire/error.h"

namespace dmuon::coordinator {
namespace {

using testing::HasSubstr;

const absl::Time kStart = absl::UnixEpoch();

v1::ReleaseJobRequest ReleaseOf(const v1::NodeIdentity& node, const std::string& job,
                                uint64_t generation) {
  v1::ReleaseJobRequest request;
  *request.mutable_node() = node;
  request.set_job_id(job);
  request.set_generation(generation);
  return request;
}

// Of the job's current plan; 0 when it has none.
uint64_t GenerationOf(const Coordinator& core, const std::string& job) {
  const auto plan = core.GetPlan(job);
  return plan.ok() ? plan->plan().generation() : 0;
}

TEST(CoordinatorTest, GenerationsOnlyGrowWhateverHappens) {
  std::mt19937 random(21);
  Coordinator core({.lease = absl::Seconds(5), .highest_generation = 40});
  absl::Time now = kStart;
  uint64_t last = 40;
  int plans = 0;
  std::map<std::string, uint64_t> lives;  // by node
  for (int round = 0; round < 5'000; ++round) {
    SCOPED_TRACE(round);
    const std::string node = random() % 2 == 0 ? "a" : "b";
    const std::string job = absl::StrCat("job", random() % 3);
    Outcome outcome;
    switch (random() % 5) {
      case 0: {
        v1::JoinRequest join = JoinOf(node, 1, absl::StrCat(lives[node] += random() % 2));
        join.set_highest_generation(random() % 8 == 0 ? last + random() % 3 : 0);
        outcome = core.Join(now, join);
        break;
      }
      case 1:
        outcome = core.ReleaseJob(now, ReleaseOf(Node(node, absl::StrCat(lives[node])), job, GenerationOf(core, job)));
        break;
      case 2:
        now += absl::Seconds(random() % 3);
        outcome = core.Tick(now);
        break;
      default:
        outcome = core.RegisterWorker(
            now, RankOf(Node(node, absl::StrCat(lives[node] + random() % 2)), ModelOf(job, "mlp", 2),
                        static_cast<uint32_t>(random() % 2)));
    }
    EXPECT_GE(core.highest_generation(), last);
    if (outcome.planning == Planning::kPlanned) {
      ++plans;
      for (const Outgoing& out : outcome.outgoing) {
        EXPECT_GT(out.event.plan().generation(), last);
        EXPECT_EQ(out.event.plan().generation(), core.highest_generation());
      }
    }
    last = core.highest_generation();
  }
  EXPECT_GT(plans, 100);
}

TEST(CoordinatorTest, APlanGoesToNobodyButItsNodes) {
  Coordinator core(Options{});
  core.Join(kStart, JoinOf("a"));
  core.Join(kStart, JoinOf("b"));
  const Outcome outcome =
      core.RegisterWorker(kStart, RankOf(Node("a"), ModelOf("j", "mlp", 1), 0));
  ASSERT_EQ(outcome.outgoing.size(), 1u);
  EXPECT_EQ(outcome.outgoing[0].node_id, "a");
  EXPECT_TRUE(core.CurrentEvents("b").empty());
}

// "j" on nodes a and b, whose state each copies to the other; a's process has come back without.
class LostNodeTest : public testing::Test {
 protected:
  LostNodeTest() {
    core_.Join(kStart, JoinOf("a", 1, "1"));
    core_.Join(kStart, JoinOf("b", 1, "1"));
    v1::JobSpec job = ModelOf("j", "mlp", 2);
    job.set_replication(v1::REPLICATION_SYNC);
    core_.RegisterWorker(kStart, RankOf(Node("a", "1"), job, 0));
    core_.RegisterWorker(kStart, RankOf(Node("b", "1"), job, 1));
    generation_ = GenerationOf(core_, "j");
  }
  Outcome Release(const std::string& node, const std::string& incarnation, bool in_order) {
    v1::ReleaseJobRequest request = ReleaseOf(Node(node, incarnation), "j", generation_);
    request.set_in_order(in_order);
    return core_.ReleaseJob(kStart, request);
  }
  Coordinator core_{Options{}};
  uint64_t generation_ = 0;
};

TEST_F(LostNodeTest, ANodeThatHasNothingOfAJobYetDoesNotEndIt) {
  ASSERT_NE(generation_, 0U);
  core_.Join(kStart, JoinOf("a", 1, "2"));
  EXPECT_TRUE(Release("a", "2", /*in_order=*/false).outgoing.empty());  // its workers died before they had begun
  EXPECT_EQ(GenerationOf(core_, "j"), generation_);
  EXPECT_FALSE(Release("b", "1", /*in_order=*/false).outgoing.empty());  // who has state ends it
  EXPECT_EQ(GenerationOf(core_, "j"), 0U);
}

TEST_F(LostNodeTest, ANodeWhoseWorkersHaveLeftIsNotWaitedFor) {
  Release("a", "1", /*in_order=*/true);
  const Outcome outcome = core_.Join(kStart, JoinOf("a", 1, "2"));
  ASSERT_EQ(outcome.outgoing.size(), 1U);
  EXPECT_EQ(outcome.outgoing[0].node_id, "b");
  EXPECT_EQ(outcome.outgoing[0].event.refusal().reason(), "STATE_LOST");
  EXPECT_EQ(GenerationOf(core_, "j"), 0U);
}

TEST(CoordinatorTest, EventsNameTheLastRegistrationOfTheirNodeThatTheyRestOn) {
  Coordinator core(Options{});
  core.Join(kStart, JoinOf("a"));
  core.Join(kStart, JoinOf("b"));
  const auto register_rank = [&](const std::string& node, uint32_t rank, uint64_t sequence,
                                 const std::string& fault = "") {
    v1::RegisterWorkerRequest request =
        RankOf(Node(node), ModelOf("j", "mlp", 3), rank, "rows", fault);
    request.set_sequence(sequence);
    return core.RegisterWorker(kStart, request);
  };
  register_rank("a", 0, 7);
  register_rank("b", 1, 3);
  const Outcome refused = register_rank("a", 2, 9, "hole");
  ASSERT_EQ(refused.outgoing.size(), 2u);
  EXPECT_TRUE(refused.outgoing[0].event.has_refusal());
  EXPECT_EQ(refused.outgoing[0].event.last_sequence(), 9u);
  EXPECT_EQ(refused.outgoing[1].event.last_sequence(), 3u);
  register_rank("a", 0, 10);
  register_rank("b", 1, 4);
  const Outcome planned = register_rank("a", 2, 11);
  ASSERT_EQ(planned.outgoing.size(), 2u);
  EXPECT_EQ(planned.outgoing[0].event.last_sequence(), 11u);
  EXPECT_EQ(planned.outgoing[1].event.last_sequence(), 4u);
  register_rank("b", 1, 5);  // back with the same shards
  EXPECT_EQ(core.CurrentEvents("b")[0].last_sequence(), 5u);
}

TEST(CoordinatorTest, AReleaseOfAnotherPlanChangesNothing) {
  Coordinator core(Options{});
  core.Join(kStart, JoinOf("a"));
  core.RegisterWorker(kStart, RankOf(Node("a"), ModelOf("j", "mlp", 1), 0));
  const uint64_t generation = GenerationOf(core, "j");
  for (const uint64_t other : {uint64_t{0}, generation + 1}) {
    EXPECT_TRUE(core.ReleaseJob(kStart, ReleaseOf(Node("a"), "j", other)).status.ok());
    EXPECT_EQ(GenerationOf(core, "j"), generation);
  }
  core.ReleaseJob(kStart, ReleaseOf(Node("a"), "j", generation));
  EXPECT_EQ(GenerationOf(core, "j"), 0u);
}

TEST(CoordinatorTest, AReleaseBeforeThePlanForgetsOneNodesRanks) {
  Coordinator core(Options{});
  for (const char* node : {"a", "b"}) core.Join(kStart, JoinOf(node));
  core.RegisterWorker(kStart, RankOf(Node("a"), ModelOf("j", "mlp", 3), 0));
  core.RegisterWorker(kStart, RankOf(Node("b"), ModelOf("j", "mlp", 3), 1));
  core.ReleaseJob(kStart, ReleaseOf(Node("a"), "j", 0));
  ASSERT_EQ(core.Status(kStart).jobs_size(), 1);
  EXPECT_EQ(core.Status(kStart).jobs(0).registered_ranks(), 1u);
}

TEST(CoordinatorTest, NodesMeetInOneAttemptAndABrokenOneIsLeftByAll) {
  Coordinator core(Options{});
  for (const char* node : {"a", "b"}) core.Join(kStart, JoinOf(node));
  core.RegisterWorker(kStart, RankOf(Node("a"), ModelOf("j", "mlp", 2), 0));
  core.RegisterWorker(kStart, RankOf(Node("b"), ModelOf("j", "mlp", 2), 1));
  const auto meeting = [&](const std::string& node, uint64_t attempt) {
    v1::Meeting made;
    *made.mutable_node() = Node(node);
    made.set_job_id("j");
    made.set_generation(GenerationOf(core, "j"));
    made.set_attempt(attempt);
    return made;
  };
  // The attempt, and whom it calls.
  const auto next_attempt = [&](const std::string& node, uint64_t broken) {
    uint64_t attempt = 0;
    const Outcome outcome = core.NextAttempt(meeting(node, broken), attempt);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    std::string called;
    for (const Outgoing& out : outcome.outgoing) {
      EXPECT_EQ(out.event.call().attempt(), attempt);
      absl::StrAppend(&called, out.node_id);
    }
    return absl::StrCat(attempt, called);
  };
  EXPECT_EQ(next_attempt("a", 0), "1b");
  EXPECT_EQ(next_attempt("b", 0), "1");
  v1::SetKeyRequest set;
  *set.mutable_meeting() = meeting("a", 1);
  set.set_key("address");
  set.set_value("here");
  ASSERT_TRUE(core.SetKey(set).ok());
  v1::GetKeyRequest get;
  *get.mutable_meeting() = meeting("b", 1);
  get.set_key("address");
  EXPECT_EQ(core.GetKey(get).value(), "here");
  EXPECT_EQ(next_attempt("b", 1), "2a");
  EXPECT_EQ(core.GetKey(get).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(core.SetKey(set).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(next_attempt("a", 1), "2");
  EXPECT_EQ(core.CurrentEvents("a").back().call().attempt(), 2u);
  get.mutable_meeting()->set_attempt(2);
  EXPECT_EQ(core.GetKey(get).value(), std::nullopt);
  get.mutable_meeting()->set_generation(99);
  EXPECT_EQ(wire::ReasonOf(core.GetKey(get).status()), v1::ERROR_REASON_STALE_GENERATION);
}

TEST(CoordinatorTest, AJobReleasedInOrderEndsWhenNoMemberNeedsIt) {
  Coordinator core(Options{});
  for (const char* node : {"a", "b", "c"}) core.Join(kStart, JoinOf(node));
  for (uint32_t rank = 0; rank < 3; ++rank) {
    core.RegisterWorker(kStart, RankOf(Node(std::string(1, static_cast<char>('a' + rank))),
                                       ModelOf("j", "mlp", 3), rank));
  }
  const uint64_t generation = GenerationOf(core, "j");
  for (const char* node : {"a", "b", "a"}) {
    v1::ReleaseJobRequest release = ReleaseOf(Node(node), "j", generation);
    release.set_in_order(true);
    EXPECT_TRUE(core.ReleaseJob(kStart, release).outgoing.empty());
    EXPECT_EQ(GenerationOf(core, "j"), generation);
  }
  v1::LeaveRequest leave;
  *leave.mutable_node() = Node("c");
  const Outcome ended = core.Leave(kStart, leave);
  ASSERT_EQ(ended.outgoing.size(), 3u);
  EXPECT_EQ(ended.outgoing[0].event.end().generation(), generation);
  EXPECT_EQ(GenerationOf(core, "j"), 0u);
}

TEST(CoordinatorTest, MembershipIsOfOneIncarnation) {
  Coordinator core(Options{});
  core.Join(kStart, JoinOf("a", 1, "first"));
  EXPECT_TRUE(core.IsMember(Node("a", "first")));
  core.Join(kStart, JoinOf("a", 1, "second"));
  EXPECT_FALSE(core.IsMember(Node("a", "first")));
  EXPECT_TRUE(core.IsMember(Node("a", "second")));
  EXPECT_EQ(core.member_count(), 1u);
}

TEST(CoordinatorTest, AHeldJobOfTwoNodesIsLostWhenTheSecondComesBackWithoutIt) {
  Coordinator before(Options{});
  before.Join(kStart, JoinOf("a"));
  before.Join(kStart, JoinOf("b"));
  const v1::JobSpec job = ModelOf("j", "mlp", 2);
  before.RegisterWorker(kStart, RankOf(Node("a"), job, 0));
  const Outcome planned = before.RegisterWorker(kStart, RankOf(Node("b"), job, 1));

  Coordinator after(Options{});
  v1::JoinRequest join = JoinOf("a");
  v1::HeldJob& held = *join.add_held();
  *held.mutable_plan() = planned.outgoing.at(0).event.plan();
  *held.mutable_job() = job;
  EXPECT_TRUE(after.Join(kStart, join).status.ok());
  ASSERT_EQ(after.CurrentEvents("a").size(), 1u);

  const Outcome lost = after.Join(kStart, JoinOf("b"));
  ASSERT_EQ(lost.outgoing.size(), 1u);
  EXPECT_EQ(lost.outgoing[0].node_id, "a");
  EXPECT_EQ(lost.outgoing[0].event.refusal().reason(), "STATE_LOST");
  EXPECT_TRUE(after.CurrentEvents("a").empty());
}

TEST(CoordinatorTest, SameShardsOnTheSamePlanKeepTheDigest) {
  Coordinator core(Options{});
  core.Join(kStart, JoinOf("a"));
  const v1::JobSpec job = ModelOf("j", "mlp", 1);
  const Outcome first = core.RegisterWorker(kStart, RankOf(Node("a"), job, 0));
  const Outcome again = core.RegisterWorker(kStart, RankOf(Node("a"), job, 0));
  ASSERT_EQ(again.outgoing.size(), 1u);
  EXPECT_EQ(again.planning, Planning::kNone);
  EXPECT_EQ(again.outgoing[0].event.SerializeAsString(),
            first.outgoing.at(0).event.SerializeAsString());
}

TEST(CoordinatorTest, DifferencesAreNamedToTheField) {
  Coordinator core(Options{});
  core.Join(kStart, JoinOf("a"));
  v1::JobSpec job = ModelOf("j", "mlp", 2);
  job.mutable_groups(0)->mutable_muon()->set_iterations(5);
  const auto message_for = [&](const v1::JobSpec& other) {
    core.RegisterWorker(kStart, RankOf(Node("a"), job, 0));
    const Outcome outcome = core.RegisterWorker(kStart, RankOf(Node("a"), other, 1));
    EXPECT_EQ(wire::ReasonOf(outcome.status), v1::ERROR_REASON_SPEC_MISMATCH);
    return std::string(outcome.status.message());
  };
  v1::JobSpec other = job;
  other.mutable_groups(0)->mutable_muon()->set_iterations(6);
  EXPECT_THAT(message_for(other),
              HasSubstr("group 'muon': muon.iterations is 6 for rank 1 and 5 for rank 0"));
  other = job;
  other.mutable_groups(0)->mutable_adamw()->set_eps(1e-8);
  EXPECT_THAT(message_for(other), HasSubstr("group 'muon': muon is unset for rank 1"));
  other = job;
  other.mutable_tensors(1)->set_name("bias");
  EXPECT_THAT(message_for(other), HasSubstr("tensor 1 is 'bias' for rank 1 and 'b1' for rank 0"));
  other = job;
  other.mutable_tensors(0)->set_param_dtype(v1::DTYPE_BFLOAT16);
  EXPECT_THAT(message_for(other),
              HasSubstr("tensor 'w1': param_dtype is DTYPE_BFLOAT16 for rank 1"));
  other = job;
  other.mutable_tensors()->RemoveLast();
  EXPECT_THAT(message_for(other), HasSubstr("rank 1 has 2 tensors and rank 0 has 3; 'w2'"));
  other = job;
  other.set_missing_gradient(v1::MISSING_GRADIENT_ZERO);
  EXPECT_THAT(message_for(other), HasSubstr("missing_gradient is MISSING_GRADIENT_ZERO"));
}

TEST(CoordinatorTest, AHundredThousandTensorsAreAcceptedAndComparedAgain) {
  plan::JobBuilder builder(2);
  for (int i = 0; i < kManyTensors; ++i) builder.Elementwise(absl::StrCat("t", i), {6});
  v1::JobSpec job = builder.Build();
  Coordinator core(Options{});
  core.Join(kStart, JoinOf("a"));
  EXPECT_TRUE(core.RegisterWorker(kStart, RankOf(Node("a"), job, 0)).status.ok());
  EXPECT_EQ(core.RegisterWorker(kStart, RankOf(Node("a"), job, 1)).planning, Planning::kPlanned);
  EXPECT_EQ(core.RegisterWorker(kStart, RankOf(Node("a"), job, 1)).outgoing.size(), 1u);
  job.mutable_tensors(kManyTensors - 1)->set_grad_dtype(v1::DTYPE_BFLOAT16);
  EXPECT_THAT(std::string(core.RegisterWorker(kStart, RankOf(Node("a"), job, 1)).status.message()),
              HasSubstr(absl::StrCat("tensor 't", kManyTensors - 1, "': grad_dtype")));
}

TEST(CoordinatorTest, AJobWhoseNodesComputeOtherBitsIsRefusedOnBoth) {
  Coordinator core({});
  for (const auto& [id, backend] : {std::pair("a", "cpu"), std::pair("b", "reference")}) {
    v1::JoinRequest join = JoinOf(id);
    join.set_backend(backend);
    ASSERT_TRUE(core.Join(kStart, join).status.ok());
  }
  const v1::JobSpec job = ModelOf("job", "mlp", 2);
  ASSERT_TRUE(core.RegisterWorker(kStart, RankOf(Node("a"), job, 0)).status.ok());
  const Outcome outcome = core.RegisterWorker(kStart, RankOf(Node("b"), job, 1));
  EXPECT_EQ(outcome.planning, Planning::kRefused);
  ASSERT_EQ(outcome.outgoing.size(), 2U);
  for (const Outgoing& out : outcome.outgoing) {
    EXPECT_THAT(out.event.refusal().message(), HasSubstr("node 'b' of rank 1 computes with 'reference', that of rank 0 "
                                                         "with 'cpu'"));
  }
  EXPECT_EQ(GenerationOf(core, "job"), 0U);
}

TEST(CoordinatorTest, APlanIsPricedByTheMeanOfWhatItsNodesHaveMeasured) {
  Coordinator core({});
  const v1::JobSpec job = ModelOf("job", "mlp", 3);
  double seconds = 1.0;
  for (const std::string id : {"a", "b"}) {
    ASSERT_TRUE(core.Join(kStart, JoinOf(id)).status.ok());
    // Two ranks of node a say the same, which counts once.
    for (const uint32_t rank : id == "a" ? std::vector<uint32_t>{0, 1} : std::vector<uint32_t>{2}) {
      v1::RegisterWorkerRequest request = RankOf(Node(id), job, rank);
      const std::vector<v1::UnitTime> times = plan::TimesOf(job, seconds);
      *request.mutable_times() = {times.begin(), times.end()};
      ASSERT_TRUE(core.RegisterWorker(kStart, request).status.ok());
    }
    seconds = 3.0;
  }
  const v1::Plan plan = core.GetPlan("job").value().plan();
  EXPECT_THAT(plan.reason(), HasSubstr("prices as measured"));
  int matrices = 0;
  for (const v1::Unit& unit : plan.units()) {
    if (unit.methods().empty()) continue;
    EXPECT_NEAR(unit.cost_seconds(), 2.0, 1e-4);
    ++matrices;
  }
  EXPECT_GT(matrices, 0);
}

TEST(CoordinatorTest, TimesOutOfBoundsAreRefusedBeforeAnythingIsKept) {
  Coordinator core({});
  ASSERT_TRUE(core.Join(kStart, JoinOf("a")).status.ok());
  const v1::JobSpec job = ModelOf("job", "mlp", 1);
  v1::RegisterWorkerRequest request = RankOf(Node("a"), job, 0);
  v1::UnitTime& time = *request.add_times();
  time.set_rows(4);
  time.set_cols(4);
  time.set_seconds(-1.0);
  EXPECT_EQ(core.RegisterWorker(kStart, request).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GenerationOf(core, "job"), 0U);
  request.clear_times();
  EXPECT_EQ(core.RegisterWorker(kStart, request).planning, Planning::kPlanned);
}

}  // namespace
}  // namespace dmuon::coordinator
