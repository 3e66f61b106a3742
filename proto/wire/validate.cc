// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "wire/validate.h"

#include <cmath>
#include <string>
#include <unordered_set>

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

absl::Status ValidateMatrix(const v1::Tensor& tensor, const std::string& what) {
  if (tensor.shape_size() == 3) {
    return InvalidField(absl::StrCat(
        what, ": shape ", ShapeText(tensor),
        " is ambiguous for a matrix optimizer (a stack of matrices or a 1-D convolution); "
        "register the matrices one by one, or use adamw"));
  }
  if (tensor.shape_size() != 2 && tensor.shape_size() != 4) {
    return InvalidField(absl::StrCat(what, ": shape ", ShapeText(tensor),
                                     " is no matrix; a matrix optimizer needs the global shape "
                                     "with 2 dimensions (or 4, a convolution kernel)"));
  }
  if (tensor.row_blocks_size() == 0) return absl::OkStatus();
  int64_t sum = 0;
  for (const int64_t rows : tensor.row_blocks()) {
    if (rows < 1 || rows > tensor.shape(0)) {
      return InvalidField(absl::StrCat(what, ": row block of ", rows, " rows, allowed are 1..",
                                       tensor.shape(0)));
    }
    sum += rows;  // at most 2^31 a block and far fewer than 2^32 blocks: cannot overflow
  }
  if (sum != tensor.shape(0)) {
    return InvalidField(absl::StrCat(what, ": row_blocks sum to ", sum, " rows of ",
                                     tensor.shape(0)));
  }
  return absl::OkStatus();
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
  if (tensor.row_blocks_size() != 0) {
    return InvalidField(what + ": row_blocks have no meaning for an element-wise optimizer");
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
  std::unordered_set<std::string> group_names;
  for (const v1::Group& group : job.groups()) {
    DMUON_RETURN_IF_ERROR(ValidateGroup(group, group_names));
  }
  std::unordered_set<std::string> tensor_names;
  for (const v1::Tensor& tensor : job.tensors()) {
    DMUON_RETURN_IF_ERROR(ValidateTensor(job, tensor, tensor_names));
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

MatrixShape AsMatrix(const v1::Tensor& tensor) {
  MatrixShape shape{tensor.shape_size() > 0 ? tensor.shape(0) : 1, 1};
  for (int d = 1; d < tensor.shape_size(); ++d) shape.cols *= tensor.shape(d);
  return shape;
}

}  // namespace dmuon::wire
