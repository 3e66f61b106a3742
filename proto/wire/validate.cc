// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/validate.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "wire/error.h"

namespace dmuon::wire {
namespace {

bool IsIdCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         absl::string_view("._:/@-").find(c) != absl::string_view::npos;
}

absl::Status Limit(absl::string_view message) {
  return Error(absl::StatusCode::kResourceExhausted, v1::ERROR_REASON_LIMIT, message);
}

// Names end up in errors, logs and tables: nothing unprintable passes.
absl::Status ValidateName(absl::string_view name, absl::string_view what) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return InvalidField(
        absl::StrCat(what, ": name has ", name.size(), " bytes, allowed are 1..", kMaxNameBytes));
  }
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] <= ' ' || name[i] > '~') {
      return InvalidField(absl::StrCat(what, ": byte ", static_cast<int>(
                                           static_cast<unsigned char>(name[i])),
                                       " at position ", i,
                                       " of the name; allowed is printable ASCII without spaces"));
    }
  }
  return absl::OkStatus();
}

// Whether the settings fit each other, the planner says.
absl::Status ValidateMuon(const v1::MuonOptions& muon, const std::string& what) {
  const struct {
    absl::string_view name;
    int value;
    bool known;
  } words[] = {
      {"variant", muon.variant(), v1::Variant_IsValid(muon.variant())},
      {"momentum_form", muon.momentum_form(), v1::MomentumForm_IsValid(muon.momentum_form())},
      {"coefficients", muon.coefficients(), v1::CoefficientSet_IsValid(muon.coefficients())},
      {"eps_mode", muon.eps_mode(), v1::EpsMode_IsValid(muon.eps_mode())},
      {"scale", muon.scale(), v1::ScaleRule_IsValid(muon.scale())},
      {"rescale", muon.rescale(), v1::Rescale_IsValid(muon.rescale())},
      {"weight_decay", muon.weight_decay(), v1::WeightDecay_IsValid(muon.weight_decay())},
      {"precision", muon.precision(), v1::Precision_IsValid(muon.precision())},
      {"rank_schedule", muon.rank_schedule(), v1::RankSchedule_IsValid(muon.rank_schedule())},
  };
  for (const auto& word : words) {
    if (word.known) continue;
    return InvalidField(absl::StrCat(what, ": ", word.name, " is ", word.value, ", not a known value"));
  }
  if (muon.iterations() < 0 || muon.iterations() > 20) {
    return InvalidField(
        absl::StrCat(what, ": iterations is ", muon.iterations(), ", allowed are 1..20"));
  }
  if (muon.polynomials_size() > 20) {
    return InvalidField(
        absl::StrCat(what, ": ", muon.polynomials_size(), " polynomials, allowed are 0..20"));
  }
  if (muon.polynomials_size() > 0 && muon.coefficients() != v1::COEFFICIENT_SET_UNSPECIFIED) {
    return InvalidField(what + ": has both coefficients and polynomials; must be one of them");
  }
  if (!(muon.eps() >= 0.0) || !std::isfinite(muon.eps())) {
    return InvalidField(absl::StrCat(what, ": eps is ", muon.eps(), ", must be finite and >= 0"));
  }
  return absl::OkStatus();
}

absl::Status ValidateGroup(const v1::Group& group, std::unordered_set<std::string>& names) {
  const std::string what = absl::StrCat("group '", group.name(), "'");
  DMUON_RETURN_IF_ERROR(ValidateName(group.name(), "group"));
  if (!names.insert(group.name()).second) return InvalidField(what + ": name is used twice");
  switch (group.optimizer_case()) {
    case v1::Group::kMuon:
      return ValidateMuon(group.muon(), what);
    case v1::Group::kAdamw:
      if (!(group.adamw().eps() > 0.0) || !std::isfinite(group.adamw().eps())) {
        return InvalidField(
            absl::StrCat(what, ": eps is ", group.adamw().eps(), ", must be finite and > 0"));
      }
      if (!v1::WeightDecay_IsValid(group.adamw().weight_decay())) {
        return InvalidField(
            absl::StrCat(what, ": weight_decay is ", group.adamw().weight_decay(), ", not a known value"));
      }
      return absl::OkStatus();
    case v1::Group::OPTIMIZER_NOT_SET:
      break;
  }
  return InvalidField(what + ": names no optimizer this daemon knows");
}

absl::Status ValidateShape(const v1::Tensor& tensor, const std::string& what) {
  if (tensor.shape_size() > kMaxDims) {
    return InvalidField(
        absl::StrCat(what, ": ", tensor.shape_size(), " dimensions, allowed are 0..", kMaxDims));
  }
  for (int d = 0; d < tensor.shape_size(); ++d) {
    if (tensor.shape(d) < 0 || tensor.shape(d) > kMaxLength) {
      return InvalidField(absl::StrCat(what, ": length ", tensor.shape(d), " of dimension ", d,
                                       ", allowed are 0..", kMaxLength));
    }
  }
  // Four bytes of fp32 an element must fit too.
  std::vector<int64_t> factors(tensor.shape().begin(), tensor.shape().end());
  factors.push_back(4);
  return CheckedProduct(factors, what).status();
}

std::string ShapeText(const v1::Tensor& tensor) {
  std::string text = "[";
  for (int d = 0; d < tensor.shape_size(); ++d) {
    absl::StrAppend(&text, d == 0 ? "" : ", ", tensor.shape(d));
  }
  return text + "]";
}

absl::Status ValidateRowBlocks(const v1::Tensor& tensor, const std::string& what) {
  const int64_t rows = tensor.shape(RowDimension(tensor));
  const int64_t repeats = std::max<int64_t>(1, tensor.row_repeats());
  if (tensor.row_repeats() < 0 || (repeats > 1 && tensor.row_blocks().empty())) {
    return InvalidField(absl::StrCat(what, ": row_repeats is ", tensor.row_repeats(), " for ", tensor.row_blocks_size(),
                                     " row_blocks; must be at least 1, and 1 without any"));
  }
  if (tensor.row_blocks().empty()) return absl::OkStatus();
  if (tensor.row_blocks_size() > kMaxRowBlocks) {
    return Limit(absl::StrCat(what, ": ", tensor.row_blocks_size(), " row_blocks, allowed are ", kMaxRowBlocks));
  }
  int64_t sum = 0;  // at most 4096 blocks of 2^31: cannot overflow
  for (const int64_t block : tensor.row_blocks()) {
    if (block < 1 || block > rows) {
      return InvalidField(absl::StrCat(what, ": row block of ", block, " rows, allowed are 1..", rows));
    }
    sum += block;
  }
  if (rows % sum == 0 && rows / sum == repeats) return absl::OkStatus();
  return InvalidField(absl::StrCat(what, ": row_blocks sum to ", sum, " rows",
                                   repeats > 1 ? absl::StrCat(", ", repeats, " times,") : "", " of ", rows));
}

absl::Status ValidateMatrix(const v1::Tensor& tensor, const std::string& what) {
  const int ndim = tensor.shape_size();
  if (ndim < 2) {
    return InvalidField(absl::StrCat(what, ": shape ", ShapeText(tensor),
                                     " is no matrix; a matrix optimizer needs the global shape with at least 2 "
                                     "dimensions"));
  }
  if (!v1::View_IsValid(tensor.view())) {
    return InvalidField(absl::StrCat(what, ": view is ", static_cast<int>(tensor.view()),
                                     ", known are 1 (flatten) and 2 (experts)"));
  }
  if (tensor.view() == v1::VIEW_EXPERTS && ndim < 3) {
    return InvalidField(absl::StrCat(what, ": view experts needs at least 3 dimensions, shape ", ShapeText(tensor),
                                     " has ", ndim));
  }
  if (tensor.view() == v1::VIEW_UNSPECIFIED && ndim > 2) {
    return InvalidField(absl::StrCat(
        what, ": shape ", ShapeText(tensor), " is ambiguous for a matrix optimizer: say which view of it is meant, "
        "flatten (one matrix of ", tensor.shape(0), " rows, as a convolution kernel) or experts (a stack of matrices, ",
        tensor.shape(ndim - 2), " x ", tensor.shape(ndim - 1), " each), or use adamw"));
  }
  return ValidateRowBlocks(tensor, what);
}

// 0 of a tensor without elements, which nobody owns.
int64_t MatricesIn(const v1::Tensor& tensor) {
  if (std::find(tensor.shape().begin(), tensor.shape().end(), 0) != tensor.shape().end()) return 0;
  int64_t matrices = std::max(1, tensor.row_blocks_size());
  for (int d = 0; d < RowDimension(tensor); ++d) matrices *= tensor.shape(d);
  return matrices;
}

absl::Status ValidateTensor(const v1::JobSpec& job, const v1::Tensor& tensor,
                            std::unordered_set<std::string>& names) {
  DMUON_RETURN_IF_ERROR(ValidateName(tensor.name(), "tensor"));
  const std::string what = absl::StrCat("tensor '", tensor.name(), "'");
  if (!names.insert(tensor.name()).second) return InvalidField(what + ": name is used twice");
  for (const auto& [field, dtype] : {std::pair("param_dtype", tensor.param_dtype()),
                                     std::pair("grad_dtype", tensor.grad_dtype())}) {
    if (dtype != v1::DTYPE_FLOAT32 && dtype != v1::DTYPE_BFLOAT16) {
      return InvalidField(absl::StrCat(what, ": ", field, " is ", static_cast<int>(dtype),
                                       ", known are 1 (float32) and 2 (bfloat16)"));
    }
  }
  if (tensor.group() >= static_cast<uint32_t>(job.groups_size())) {
    return InvalidField(absl::StrCat(what, ": group ", tensor.group(), " of ", job.groups_size()));
  }
  DMUON_RETURN_IF_ERROR(ValidateShape(tensor, what));
  if (job.groups(static_cast<int>(tensor.group())).has_muon()) return ValidateMatrix(tensor, what);
  if (tensor.view() != v1::VIEW_UNSPECIFIED || tensor.row_blocks_size() != 0 || tensor.row_repeats() > 1) {
    return InvalidField(what + ": view, row_blocks and row_repeats have no meaning for an element-wise optimizer");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateId(absl::string_view id, absl::string_view what) {
  if (id.empty() || id.size() > 128) {
    return InvalidField(absl::StrCat(what, ": ", id.size(), " characters, allowed are 1..128"));
  }
  for (size_t i = 0; i < id.size(); ++i) {
    if (!IsIdCharacter(id[i])) {
      return InvalidField(absl::StrCat(what, ": character ", i,
                                       " is none of letters, digits and . _ : / @ -"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateCheckpointName(absl::string_view name) {
  if (name.empty() || name.size() > 128) {
    return InvalidField(absl::StrCat("checkpoint name: ", name.size(), " characters, allowed are 1..128"));
  }
  for (size_t i = 0; i < name.size(); ++i) {
    const bool alphanumeric = (name[i] >= 'a' && name[i] <= 'z') || (name[i] >= '0' && name[i] <= '9');
    if (alphanumeric || (i > 0 && absl::string_view("._-").find(name[i]) != absl::string_view::npos)) continue;
    return InvalidField(absl::StrCat("checkpoint name '", absl::CEscape(name), "': character ", i, ", '",
                                     absl::CEscape(name.substr(i, 1)), "', is none of a-z and 0-9",
                                     i > 0 ? " and . _ -" : ", as the first must be"));
  }
  return absl::OkStatus();
}

absl::Status ValidateDigest(absl::string_view digest) {
  constexpr size_t kDigits = 64;
  if (digest.size() == kDigits && digest.find_first_not_of("0123456789abcdef") == absl::string_view::npos) {
    return absl::OkStatus();
  }
  return InvalidField(absl::StrCat("digest '", absl::CEscape(digest.substr(0, kDigits)), "' of ", digest.size(),
                                   " characters; it must be ", kDigits, " of 0-9 a-f"));
}

absl::Status ValidateSchedule(const v1::CheckpointSchedule& schedule) {
  const double seconds = schedule.every_seconds();
  if (!(seconds >= 0.0 && seconds <= kMaxCheckpointSeconds)) {  // true for NaN
    return InvalidField(absl::StrCat("checkpoints: every_seconds is ", seconds, ", must be in 0..2147483648 (0: off)"));
  }
  const uint32_t least = schedule.every_steps() > 0 || seconds > 0.0 ? 1 : 0;
  if (schedule.keep() >= least && schedule.keep() <= kMaxCheckpoints) return absl::OkStatus();
  return InvalidField(
      absl::StrCat("checkpoints: keep is ", schedule.keep(), ", allowed are ", least, "..", kMaxCheckpoints));
}

absl::Status ValidateJobSpec(const v1::JobSpec& job) {
  DMUON_RETURN_IF_ERROR(ValidateId(job.job_id(), "job_id"));
  if (job.world_size() < 1 || job.world_size() > kMaxWorldSize) {
    return InvalidField(absl::StrCat("world_size is ", job.world_size(), ", allowed are 1..",
                                     kMaxWorldSize));
  }
  if (job.groups_size() > kMaxGroups) {
    return Limit(absl::StrCat(job.groups_size(), " groups, allowed are ", kMaxGroups));
  }
  if (job.tensors_size() > kMaxTensors) {
    return Limit(absl::StrCat(job.tensors_size(), " tensors, allowed are ", kMaxTensors));
  }
  if (!(job.max_grad_norm() >= 0.0) || !std::isfinite(job.max_grad_norm())) {
    return InvalidField(absl::StrCat("max_grad_norm is ", job.max_grad_norm(),
                                     ", must be finite and >= 0 (0: off)"));
  }
  if (job.missing_gradient() == v1::MISSING_GRADIENT_UNSPECIFIED ||
      !v1::MissingGradient_IsValid(job.missing_gradient())) {
    return InvalidField(absl::StrCat("missing_gradient is ",
                                     static_cast<int>(job.missing_gradient()),
                                     ", known are 1 (error), 2 (skip) and 3 (zero)"));
  }
  if (!v1::Autotune_IsValid(job.autotune())) {
    return InvalidField(absl::StrCat("autotune is ", static_cast<int>(job.autotune()),
                                     ", known are 1 (off), 2 (cached) and 3 (on)"));
  }
  if (!v1::Replication_IsValid(job.replication())) {
    return InvalidField(absl::StrCat("replication is ", static_cast<int>(job.replication()),
                                     ", known are 1 (none), 2 (async) and 3 (sync)"));
  }
  DMUON_RETURN_IF_ERROR(ValidateSchedule(job.checkpoints()));
  std::unordered_set<std::string> group_names;
  for (const v1::Group& group : job.groups()) {
    DMUON_RETURN_IF_ERROR(ValidateGroup(group, group_names));
  }
  std::unordered_set<std::string> tensor_names;
  int64_t matrices = 0;
  for (const v1::Tensor& tensor : job.tensors()) {
    DMUON_RETURN_IF_ERROR(ValidateTensor(job, tensor, tensor_names));
    if (!job.groups(static_cast<int>(tensor.group())).has_muon()) continue;
    // No tensor has more than 2^61 elements, so that the sum of two cannot overflow.
    matrices += MatricesIn(tensor);
    if (matrices > kMaxMatrices) {
      return Limit(absl::StrCat("tensor '", tensor.name(), "': ", matrices, " matrices with those before it, allowed are ",
                                kMaxMatrices, " in a job"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateRowFactors(const v1::JobSpec& job, const v1::RowFactors& rows) {
  if (rows.tensor() >= static_cast<uint32_t>(job.tensors_size())) {
    return InvalidField(absl::StrCat("row factors of tensor ", rows.tensor(), ", of ", job.tensors_size()));
  }
  const v1::Tensor& tensor = job.tensors(static_cast<int>(rows.tensor()));
  const std::string what = absl::StrCat("row factors of tensor '", tensor.name(), "'");
  const int64_t height = tensor.shape_size() > 0 ? tensor.shape(0) : 0;
  const int64_t first = rows.first_row();
  const int64_t each = rows.rows_each();
  // In this order nothing overflows.
  if (first < 0 || first > height || each < 1 || rows.factors_size() > (height - first) / each) {
    return InvalidField(absl::StrCat(what, ": ", rows.factors_size(), " times ", each, " rows from row ", first,
                                     " on, of ", height));
  }
  for (int i = 0; i < rows.factors_size(); ++i) {
    if (rows.factors(i) > 0.0 && rows.factors(i) <= 1.0) continue;  // false for NaN
    return InvalidField(absl::StrCat(what, ": factor ", i, " is ", rows.factors(i), ", must be in (0, 1]"));
  }
  return absl::OkStatus();
}

absl::Status ValidateHypers(const v1::JobSpec& job, std::span<const v1::Hyper* const> hypers) {
  if (hypers.size() != static_cast<size_t>(job.groups_size())) {
    return InvalidField(absl::StrCat(hypers.size(), " hyper-parameter sets for ",
                                     job.groups_size(), " groups"));
  }
  for (size_t i = 0; i < hypers.size(); ++i) {
    const v1::Hyper& hyper = *hypers[i];
    const std::string& name = job.groups(static_cast<int>(i)).name();
    for (const auto& [field, value] :
         {std::pair("lr", hyper.lr()), std::pair("weight_decay", hyper.weight_decay())}) {
      if (!(value >= 0.0) || !std::isfinite(value)) {
        return InvalidField(absl::StrCat("group '", name, "': ", field, " is ", value,
                                         ", must be finite and >= 0"));
      }
    }
    for (const auto& [field, value] :
         {std::pair("momentum", hyper.momentum()), std::pair("beta2", hyper.beta2())}) {
      if (!(value >= 0.0 && value < 1.0)) {
        return InvalidField(
            absl::StrCat("group '", name, "': ", field, " is ", value, ", must be in [0, 1)"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ShardBoxes>> ParseShards(const v1::JobSpec& job,
                                                    std::span<const v1::Shard* const> shards,
                                                    uint32_t rank) {
  if (shards.size() != static_cast<size_t>(job.tensors_size())) {
    return InvalidField(absl::StrCat("rank ", rank, ": ", shards.size(), " shards for ",
                                     job.tensors_size(), " tensors"));
  }
  std::vector<ShardBoxes> parsed;
  parsed.reserve(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    const v1::Shard& shard = *shards[i];
    if (shard.tensor() != i) {
      return InvalidField(absl::StrCat("rank ", rank, ": shard ", i, " names tensor ",
                                       shard.tensor(), "; shards come in the tensors' order"));
    }
    const v1::Tensor& tensor = job.tensors(static_cast<int>(i));
    const std::span<const int64_t> shape(tensor.shape().data(),
                                         static_cast<size_t>(tensor.shape_size()));
    const std::string what = absl::StrCat("tensor '", tensor.name(), "', rank ", rank);
    ShardBoxes boxes;
    DMUON_ASSIGN_OR_RETURN(boxes.grad, ParseBox(shard.grad_box(), shape, what + ": grad_box"));
    DMUON_ASSIGN_OR_RETURN(boxes.param, ParseBox(shard.param_box(), shape, what + ": param_box"));
    boxes.reduced = shard.reduced();
    parsed.push_back(boxes);
  }
  return parsed;
}

size_t SizeOf(v1::DType dtype) { return dtype == v1::DTYPE_BFLOAT16 ? 2 : 4; }

int RowDimension(const v1::Tensor& tensor) { return tensor.view() == v1::VIEW_EXPERTS ? tensor.shape_size() - 2 : 0; }

bool IsInterleaved(const v1::Tensor& tensor) { return tensor.row_repeats() > 1; }

}  // namespace dmuon::wire
