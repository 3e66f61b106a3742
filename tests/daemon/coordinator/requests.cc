// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/daemon/coordinator/requests.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/daemon/plan/job_builder.h"

namespace dmuon::coordinator {

v1::JobSpec ModelOf(const std::string& job_id, const std::string& model, uint32_t world_size) {
  v1::JobSpec job = plan::JobBuilder(world_size)
                        .Matrix("w1", 8, 4)
                        .Elementwise("b1", {8})
                        .Matrix("w2", 4, model == "wide" ? 9 : 8)
                        .Build();
  job.set_job_id(job_id);
  if (model == "clipped") job.set_max_grad_norm(1.0);
  if (model == "copied") job.set_replication(v1::REPLICATION_SYNC);
  return job;
}

v1::RegisterWorkerRequest RankOf(const v1::NodeIdentity& node, const v1::JobSpec& job,
                                 uint32_t rank, const std::string& split,
                                 const std::string& fault) {
  v1::RegisterWorkerRequest request;
  *request.mutable_node() = node;
  request.set_rank(rank);
  *request.mutable_job() = job;
  for (int i = 0; i < job.tensors_size(); ++i) {
    wire::Box box = plan::WholeTensor(job.tensors(i));
    if (split == "rows") box = plan::RowsOf(box, rank, std::max(job.world_size(), 1u));
    if (i == 0 && fault == "hole") box.length[0] -= 1;
    if (i == 0 && fault == "overlap") {
      box.offset[0] -= 1;
      box.length[0] += 1;
    }
    v1::Shard& shard = *request.add_shards();
    shard.set_tensor(static_cast<uint32_t>(i));
    *shard.mutable_grad_box() = wire::ToProto(box);
    *shard.mutable_param_box() = wire::ToProto(box);
    shard.set_reduced(i != 0 || fault != "reduced");
  }
  return request;
}

v1::ReportPartRequest FailureOf(const v1::NodeIdentity& node, const std::string& name, uint64_t step,
                                const std::string& why) {
  v1::ReportPartRequest request;
  *request.mutable_node() = node;
  request.set_job_id("demo");
  request.set_generation(1);
  request.set_name(name);
  request.set_step(step);
  request.set_failure(why);
  return request;
}

v1::ReportPartRequest ReportOf(const v1::NodeIdentity& node, const std::string& name, uint64_t step,
                               uint64_t number) {
  v1::ReportPartRequest request = FailureOf(node, name, step, "");
  v1::CheckpointPart& part = *request.mutable_part();
  part.set_node_id(node.node_id());
  part.set_file(absl::StrCat(name, ".", step, ".1.", node.node_id(), ".safetensors"));
  part.set_bytes(4096);
  part.set_entries(number);
  part.set_header_sha256(absl::StrFormat("%064x", number));
  return request;
}

}  // namespace dmuon::coordinator
