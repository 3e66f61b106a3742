// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The units that one slot owns, with their fp32 masters and optimizer state, and the stages that
// touch them. Only the slot's own thread calls the mutating functions, so there is no lock; between
// steps, and while no step runs, the job's thread may read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/node/gradient_sources.h"
#include "daemon/node/layout.h"
#include "daemon/node/messages.h"
#include "daemon/node/step_report.h"
#include "daemon/node/worker_boxes.h"
#include "dmuon/v1/peer.pb.h"
#include "dmuon/v1/plan.pb.h"
#include "dmuon/v1/tensor.pb.h"
#include "kernels/backend.h"
#include "wire/box.h"

namespace dmuon::node {

// Where a unit's new values go: a piece of a message to another node.
struct Departure {
  Message* message = nullptr;
  const Piece* piece = nullptr;
};

// One matrix of a unit; an element-wise unit counts as one. Its elements lie together in the unit's buffers.
struct OwnedMatrix {
  kernels::MatrixShape shape;
  size_t first = 0;                       // element
  kernels::Method method;                 // of its Newton-Schulz
  std::vector<std::vector<float>> state;  // of the optimizer, in the order of kernels::StateTensors

  // Its part of the unit's updates: the matrix, and behind it what kernels::UpdateSize adds.
  size_t first_update = 0;
  size_t update_size = 0;

  [[nodiscard]] std::span<float> of(std::vector<float>& buffer) const {
    return std::span(buffer).subspan(first, static_cast<size_t>(shape.rows * shape.cols));
  }
};

// One unit: what it is, and its buffers of `box().elements()` floats each.
struct OwnedUnit {
  uint32_t index = 0;  // into the plan's units
  uint32_t tensor = 0;
  uint32_t group = 0;
  uint32_t bucket = 0;
  Layout layout;  // of weight and gradient
  std::vector<OwnedMatrix> matrices;
  std::vector<float> weight;
  std::vector<float> gradient;  // staging: the collected gradient of the step in flight
  int64_t updates = 0;          // applied so far
  size_t first_update = 0;      // of a batch, in the slot's updates
  kernels::GradientStats stats;

  // What moves, set once by the pipeline.
  std::vector<GradientSource> sources;
  std::vector<Arrival> loads;  // initial values that only other nodes have
  std::vector<Departure> publications;

  [[nodiscard]] const wire::Box& box() const { return layout.box(); }
  [[nodiscard]] uint64_t state_bytes() const {
    size_t elements = weight.size();
    for (const OwnedMatrix& matrix : matrices) {
      for (const std::vector<float>& values : matrix.state) elements += values.size();
    }
    return sizeof(float) * elements;
  }
};

// What a step brings beside gradients, the same on all workers.
struct StepSettings {
  std::vector<kernels::Hyper> hypers;  // by group
  std::vector<v1::RowFactors> row_factors;
};

// For a node that no worker has told.
v1::StepSettings ToProto(const StepSettings& settings, uint64_t target);
StepSettings FromProto(const v1::StepSettings& settings);

// What a scheduler may change of a group.
kernels::Hyper ToHyper(const v1::Hyper& hyper);

class OwnedState {
 public:
  // The units of `slot` of node `node` in `plan`. All buffers zero.
  OwnedState(const v1::JobSpec& job, const v1::Plan& plan, uint32_t node, uint32_t slot,
             kernels::Backend* backend);

  // Bytes that all buffers of the node's slots take, staging and working memory included.
  static uint64_t BytesFor(const v1::JobSpec& job, const v1::Plan& plan, uint32_t node);

  [[nodiscard]] size_t size() const { return units_.size(); }
  [[nodiscard]] const OwnedUnit& unit(size_t i) const { return units_[i]; }
  OwnedUnit& mutable_unit(size_t i) { return units_[i]; }

  // Initial weight from the workers' parameter boxes and the unit's loads. INVALID_ARGUMENT naming
  // the tensor when an element is not finite.
  absl::Status Load(size_t i, const WorkerBoxes& workers);

  // Sums the unit's sources into its gradient (the mean where they are not reduced) and measures it.
  // The pieces of `missing` ranks count as zeros.
  void Collect(size_t i, const WorkerBoxes& workers, const MissingRanks& missing);

  // The end of the units from `i` on that are best orthogonalised together: their matrices are alike, and `skipped`
  // says no. At least i + 1.
  [[nodiscard]] size_t BatchEnd(size_t i, const std::function<bool(const OwnedUnit&)>& skipped) const;

  // The update directions of the matrices of units [i, end), each orthogonalised on its own, into the slot's scratch.
  // No state changes. Only for units of matrix optimizers, more than one only as BatchEnd says. `work` counts the
  // matrices. A Gram form that diverged is computed again in the standard form.
  absl::Status Orthogonalize(size_t i, size_t end, const kernels::Hyper& hyper, double clip, NewtonSchulzWork& work);

  // Weight decay, weight, momentum and update count of all matrices of the unit, together.
  void Apply(size_t i, const kernels::Hyper& hyper, double clip);

  // Multiplies the unit's part of the rows that `rows` names, in its tensor, by their factors.
  void MultiplyRows(size_t i, std::span<const v1::RowFactors> rows);

  // Writes the unit's part of each worker's parameter box, cast to the job's dtype; `only_rank` < 0:
  // of all workers.
  void Deliver(size_t i, const WorkerBoxes& workers, int64_t only_rank = -1) const;

  // Writes the unit's part of each message that publishes it, cast to the job's dtype.
  void Pack(size_t i) const;

  [[nodiscard]] bool is_matrix(size_t i) const {
    return optimizers_[units_[i].group].needs_whole_matrix();
  }
  [[nodiscard]] const kernels::Optimizer& optimizer(size_t i) const {
    return optimizers_[units_[i].group];
  }

 private:
  [[nodiscard]] OwnedUnit MakeUnit(const v1::Unit& planned, uint32_t index) const;
  absl::Status Orthogonalize(OwnedUnit& unit, OwnedMatrix& matrix, const kernels::Method& method,
                             const kernels::Hyper& hyper, double clip, NewtonSchulzWork& work);
  absl::Status OrthogonalizeBatch(std::span<OwnedUnit> units, const kernels::Hyper& hyper, double clip,
                                  NewtonSchulzWork& work);
  // What became of a matrix, naming its tensor. One whose Gram form has diverged is computed again.
  absl::Status Conclude(absl::Status status, OwnedUnit& unit, OwnedMatrix& matrix, const kernels::Hyper& hyper,
                        double clip, NewtonSchulzWork& work);
  // The matrix's part of update_.
  [[nodiscard]] std::span<float> UpdateOf(const OwnedUnit& unit, const OwnedMatrix& matrix) {
    return std::span(update_).subspan(unit.first_update + matrix.first_update, matrix.update_size);
  }
  // A matrix's buffers as the backend takes them.
  kernels::UnitState StateOf(OwnedUnit& unit, OwnedMatrix& matrix) const;
  void Store(OwnedUnit& unit, const wire::Box& box, v1::DType dtype, const std::byte* from) const;
  void Write(const OwnedUnit& unit, const wire::Box& box, v1::DType dtype, std::byte* to) const;
  struct Elements {
    v1::DType dtype;
    const std::byte* data;
  };
  Elements PartOf(const OwnedUnit& unit, const GradientSource& source, const GradientTerm& term,
                  const WorkerBoxes& workers, const MissingRanks& missing);

  const v1::JobSpec* const job_;
  const std::vector<kernels::Optimizer> optimizers_;
  kernels::Backend* const backend_;
  std::vector<OwnedUnit> units_;
  kernels::Scratch scratch_;
  std::vector<float> update_;   // of the units between Orthogonalize and Apply
  std::vector<float> partial_;  // this node's part of a sum of several nodes
};

}  // namespace dmuon::node
