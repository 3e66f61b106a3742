// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/daemon/coordinator/requests.h"

#include <algorithm>

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

}  // namespace dmuon::coordinator
