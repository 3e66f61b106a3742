// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// What only the cuda backend promises: spans in device memory, bits of element-wise work, large matrices, batches,
// streams.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cuda/without_graphs.h"
#include "tests/kernels/family.h"
#include "tests/kernels/matrices.h"

namespace dmuon::kernels {
namespace {

constexpr Hyper kHyper = {.lr = 0.1, .weight_decay = 0.1, .momentum = 0.95, .beta2 = 0.95};

// Device memory that holds a copy of `values`.
class OnDevice {
 public:
  explicit OnDevice(const std::vector<float>& values) : count_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<size_t>(Bytes(), 1)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), Bytes(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  [[nodiscard]] std::span<float> span() const { return {static_cast<float*>(data_), count_}; }
  [[nodiscard]] std::vector<float> Values() const {
    std::vector<float> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, Bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  [[nodiscard]] size_t Bytes() const { return count_ * sizeof(float); }

  void* data_ = nullptr;
  size_t count_;
};

class CudaTest : public testing::Test {
 protected:
  void SetUp() override { cuda_ = MakeOrSkip("cuda"); }

  // Three steps of a unit in host memory.
  static Unit After(Backend& backend, const Optimizer& optimizer) {
    Unit unit(backend, optimizer, kHyper, Gaussian(40, 72, 100));
    for (uint32_t i = 0; i < 3; ++i) unit.Step(Gaussian(40, 72, i));
    return unit;
  }

  std::unique_ptr<Backend> cuda_;
};

TEST_F(CudaTest, SpansInDeviceMemoryGiveTheBitsOfHostMemory) {
  for (const auto& [name, optimizer] : FamilyOf(*cuda_)) {
    SCOPED_TRACE(name);
    const OnDevice weight(Gaussian(40, 72, 100).values);
    std::vector<std::unique_ptr<OnDevice>> tensors;
    for (const StateTensor& t : StateTensors(optimizer, 40, 72)) {
      tensors.push_back(std::make_unique<OnDevice>(std::vector<float>(static_cast<size_t>(t.rows * t.cols))));
    }
    std::vector<std::vector<float>> shapes;
    for (const auto& tensor : tensors) shapes.push_back(tensor->Values());
    UnitState state = BindState(optimizer, 40, 72, weight.span(), shapes, 0);
    size_t i = 0;
    for (auto* span : {&state.momentum, &state.second_moment, &state.column_moment, &state.slow_gradient, &state.basis}) {
      if (!span->empty()) *span = tensors[i++]->span();
    }
    Scratch scratch;
    for (uint32_t step = 0; step < 3; ++step) {
      const OnDevice gradient(Gaussian(40, 72, step).values);
      const OnDevice update(std::vector<float>(optimizer.needs_whole_matrix() ? UpdateSize(optimizer, 40, 72) : 0));
      if (optimizer.needs_whole_matrix()) {
        const MatrixView x = cuda_->Direction(optimizer, kHyper, 1.0, gradient.span(), state, update.span());
        ASSERT_TRUE(cuda_->OrthogonalizeDirection(optimizer, {}, x, state, update.span(), scratch).ok());
      }
      cuda_->Apply(optimizer, kHyper, 1.0, gradient.span(), update.span(), state);
    }
    Unit host = After(*cuda_, optimizer);
    EXPECT_EQ(weight.Values(), host.weight().values);
    for (size_t t = 0; t < tensors.size(); ++t) EXPECT_EQ(tensors[t]->Values(), host.tensors()[t]) << t;
    EXPECT_EQ(state.step, 3);
  }
}

TEST_F(CudaTest, CastsAndMeasuresReachDeviceMemory) {
  const Matrix m = Gaussian(33, 65, 3);
  const OnDevice floats(m.values);
  const OnDevice halves(std::vector<float>(m.values.size() / 2 + 1));
  const OnDevice back(m.values);
  cuda_->CastFromFloat(floats.span(), DType::kBFloat16, halves.span().data());
  cuda_->CastToFloat(DType::kBFloat16, halves.span().data(), back.span());
  cuda_->AddToFloat(DType::kBFloat16, halves.span().data(), back.span());
  cuda_->Multiply(0.5, back.span());
  EXPECT_LE(RelativeError(back.Values(), m.values), 1.0 / 256.0);
  EXPECT_EQ(cuda_->Measure(floats.span()).sum_squares, cuda_->Measure(m.values).sum_squares);
}

// No sum over several elements is in these, so their bits are those of the cpu backend.
TEST_F(CudaTest, ElementwiseBitsAreThoseOfTheCpu) {
  const auto cpu = MustMake("cpu");
  Unit a = After(*cuda_, AdamW());
  Unit b = After(*cpu, AdamW());
  EXPECT_EQ(a.weight().values, b.weight().values);
  EXPECT_EQ(a.tensors(), b.tensors());
  for (const Optimizer& optimizer : {Muon(), AdaMuon(), Muon2(), Mona()}) {
    Matrix weight = Gaussian(40, 72, 1);
    std::vector<std::vector<float>> tensors;
    for (const StateTensor& t : StateTensors(optimizer, 40, 72)) {
      tensors.push_back(Gaussian(t.rows, t.cols, static_cast<uint32_t>(tensors.size() + 2)).values);
      if (t.name == "second_moment") {
        for (float& value : tensors.back()) value = std::abs(value);
      }
    }
    const Matrix gradient = Gaussian(40, 72, 9);
    const UnitState state = BindState(optimizer, 40, 72, weight.values, tensors, 3);
    std::vector<float> on_cuda(gradient.values.size());
    std::vector<float> on_cpu(gradient.values.size());
    cuda_->Direction(optimizer, kHyper, 0.3, gradient.values, state, on_cuda);
    cpu->Direction(optimizer, kHyper, 0.3, gradient.values, state, on_cpu);
    EXPECT_EQ(on_cuda, on_cpu);
  }
}

// From 4096 on symmetric products are computed by panels and mirrored.
TEST_F(CudaTest, EveryPanelOfALargeMatrixIsRight) {
  const auto reference = MustMake("reference");
  const Matrix small = Gaussian(17, 23, 1);
  const Matrix judged = Orthogonal(*reference, {}, small);
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{4101, 4300}, {4300, 4101}}) {
    for (const Form form : {Form::kStandard, Form::kGram}) {
      const Matrix got = Orthogonal(*cuda_, {}, Spread(small, rows, cols), {form, Precision::kFloat32});
      EXPECT_LE(RelativeError(got.values, Spread(judged, rows, cols).values), 1e-4) << rows << Name(form);
    }
  }
}

constexpr Method kMethods[] = {{Form::kStandard, Precision::kFloat32}, {Form::kGram, Precision::kFloat32},
                               {Form::kStandard, Precision::kBFloat16}, {Form::kGram, Precision::kBFloat16}};

// `items` of Gaussian matrices, the last of them zero, in host and in device memory by turns.
void ExpectTheBitsOfOneByOne(Backend& cuda, int64_t rows, int64_t cols, uint32_t items, const Method& method) {
  std::vector<Matrix> host;
  std::vector<std::unique_ptr<OnDevice>> device;
  std::vector<MatrixView> batch;
  for (uint32_t i = 0; i < items; ++i) host.push_back(Gaussian(rows, cols, i, i + 1 == items ? 0.0 : 1.0));
  std::vector<Matrix> expected = host;
  Scratch scratch;
  for (Matrix& matrix : expected) ASSERT_TRUE(cuda.Orthogonalize({}, method, matrix.view(), scratch).ok());
  for (uint32_t i = 0; i < items; ++i) {
    device.push_back(std::make_unique<OnDevice>(host[i].values));
    batch.push_back({i % 2 == 0 ? host[i].values.data() : device[i]->span().data(), rows, cols});
  }
  std::vector<absl::Status> statuses(items);
  cuda.OrthogonalizeBatch({}, method, batch, statuses, scratch);
  for (uint32_t i = 0; i < items; ++i) {
    EXPECT_TRUE(statuses[i].ok()) << statuses[i];
    EXPECT_EQ(i % 2 == 0 ? host[i].values : device[i]->Values(), expected[i].values)
        << rows << " x " << cols << ", " << items << " of them, number " << i << ", " << Name(method.form) << " "
        << Name(method.precision);
  }
}

TEST_F(CudaTest, BatchesOfAnySizeHaveTheBitsOfOneByOne) {
  for (const Method& method : kMethods) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{7, 19}, {56, 24}, {1, 5}}) {
      ExpectTheBitsOfOneByOne(*cuda_, rows, cols, 3, method);
    }
  }
  ExpectTheBitsOfOneByOne(*cuda_, 2, 3, 35, {});  // more than are worked on at one time
}

TEST_F(CudaTest, LargeMatrixBatchesHaveTheBitsOfOneByOne) {
  for (const Method& method : kMethods) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{768, 768}, {2304, 768}, {128, 896}, {1000, 1500}}) {
      for (const uint32_t items : {2U, 8U}) ExpectTheBitsOfOneByOne(*cuda_, rows, cols, items, method);
    }
  }
}

// What four batches become, each of inputs and at addresses of its own.
std::vector<std::vector<float>> Rounds(Backend& cuda, int64_t rows, int64_t cols, uint32_t items, const Method& method) {
  std::vector<std::vector<float>> results;
  std::vector<std::unique_ptr<OnDevice>> memory;  // all of it stays, so no address comes again
  Scratch scratch;
  for (uint32_t round = 0; round < 4; ++round) {
    std::vector<MatrixView> batch;
    for (uint32_t i = 0; i < items; ++i) {
      memory.push_back(std::make_unique<OnDevice>(Gaussian(rows, cols, items * round + i).values));
      batch.push_back({memory.back()->span().data(), rows, cols});
    }
    std::vector<absl::Status> statuses(items);
    cuda.OrthogonalizeBatch({}, method, batch, statuses, scratch);
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
    for (size_t i = memory.size() - items; i < memory.size(); ++i) results.push_back(memory[i]->Values());
  }
  return results;
}

// Of a stream with graphs the first batch is issued call by call, the second is captured, and the others replay it.
void ExpectGraphsToHaveTheBitsOfSingleCalls(Backend& cuda, int64_t rows, int64_t cols, uint32_t items,
                                            const Method& method) {
  std::vector<std::vector<float>> single, graphs;
  WithoutGraphs([&] { single = Rounds(cuda, rows, cols, items, method); });
  std::thread([&] { graphs = Rounds(cuda, rows, cols, items, method); }).join();
  EXPECT_EQ(graphs, single) << rows << " x " << cols << ", " << items << " of them, " << Name(method.form) << " "
                            << Name(method.precision);
}

TEST_F(CudaTest, GraphsHaveTheBitsOfSingleCallsWhereverTheMatricesLie) {
  for (const Method& method : kMethods) {
    for (const auto& [rows, cols, items] :
         {std::tuple<int64_t, int64_t, uint32_t>{24, 16, 1}, {9, 20, 2}}) {
      ExpectGraphsToHaveTheBitsOfSingleCalls(*cuda_, rows, cols, items, method);
    }
  }
}

TEST_F(CudaTest, LargeMatrixGraphsHaveTheBitsOfSingleCallsWhereverTheMatricesLie) {
  ExpectGraphsToHaveTheBitsOfSingleCalls(*cuda_, 768, 768, 8, {Form::kGram, Precision::kFloat32});
  ExpectGraphsToHaveTheBitsOfSingleCalls(*cuda_, 4101, 4300, 1, {Form::kGram, Precision::kBFloat16});  // by panels
}

TEST_F(CudaTest, SmallMatricesAreBatchedWithinABoundOfMemory) {
  EXPECT_EQ(cuda_->BatchSize({128, 512}), 32U);
  EXPECT_EQ(cuda_->BatchSize({200, 20000}), 9U);  // 14 bytes an element, and 20 of the square's: 57 MB each
  EXPECT_EQ(cuda_->BatchSize({200, 21000}), 1U);
  EXPECT_EQ(cuda_->BatchSize({4096, 4096}), 1U);
  EXPECT_EQ(cuda_->BatchSize({0, 5}), 1U);
}

TEST_F(CudaTest, StreamsAtOneTimeGiveTheBitsOfOne) {
  const Matrix input = Gaussian(200, 270, 4);
  const Matrix expected = Orthogonal(*cuda_, {}, input);
  std::vector<int> different(4);
  std::vector<std::thread> threads;
  for (int& count : different) {
    threads.emplace_back([&] {
      Scratch scratch;
      for (int run = 0; run < 5; ++run) {
        Matrix m = input;
        if (!cuda_->Orthogonalize({}, {}, m.view(), scratch).ok() || m.values != expected.values) ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(different, std::vector<int>(4));
}

TEST_F(CudaTest, AMatrixBeyondTheMemoryIsRefusedAndTheNextOneIsNot) {
  // 2^40 elements, of which only the address is used: memory for the staged copy is asked for first.
  Matrix tiny = Gaussian(8, 8, 1);
  Scratch scratch;
  const absl::Status status =
      cuda_->Orthogonalize({}, {}, {tiny.values.data(), int64_t{1} << 20, int64_t{1} << 20}, scratch);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(status.message().find("Orthogonalize of 1048576 x 1048576: cudaMalloc of 4398046511104 bytes: "
                                  "cudaErrorMemoryAllocation"),
            std::string::npos)
      << status;
  EXPECT_TRUE(cuda_->Orthogonalize({}, {}, tiny.view(), scratch).ok());
}

}  // namespace
}  // namespace dmuon::kernels
