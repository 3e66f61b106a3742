// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A small checkpoint of two nodes, and words for what is done with it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/checkpoint/entry.h"
#include "daemon/checkpoint/image.h"
#include "daemon/checkpoint/manifest.h"
#include "daemon/checkpoint/store.h"

namespace dmuon::checkpoint {

inline constexpr char kJob[] = "demo";

inline Entry WholeEntry(const std::string& tensor, const std::string& quantity, std::vector<int64_t> shape) {
  Entry entry;
  entry.tensor = tensor;
  entry.tensor_shape = shape;
  entry.optimizer = "muon";
  entry.updates = 7;
  entry.quantity = quantity;
  entry.box = wire::WholeBox(shape);
  entry.shape = std::move(shape);
  return entry;
}

// All kinds: a whole tensor, a scalar, an empty one, a box of one, and state of one matrix.
inline std::vector<Entry> SampleEntries() {
  std::vector<Entry> entries = {WholeEntry("layers.0.wq", kWeight, {4, 3}), WholeEntry("layers.0.wq", "momentum", {4, 3}),
                                WholeEntry("scale", kWeight, {}), WholeEntry("none", kWeight, {0, 5})};
  Entry box = WholeEntry("experts", "momentum", {4, 2, 3});
  box.box.offset[0] = 1;
  box.box.length[0] = 2;
  box.shape = {2, 2, 3};
  entries.push_back(box);
  box.quantity = "row_norms";
  box.matrix = 2;
  box.shape = {2};
  entries.push_back(box);
  return entries;
}

// Its values say where they belong: none equals another, and another `seed` has others.
inline Image SampleImage(std::vector<Entry> entries, float seed = 0) {
  absl::StatusOr<Image> image = Image::Create(std::move(entries));
  EXPECT_TRUE(image.ok()) << image.status();
  for (size_t i = 0; i < image->entries().size(); ++i) {
    float value = seed + 1000.0F * static_cast<float>(i + 1);
    for (float& element : image->values(i)) element = value += 0.25F;
  }
  return *std::move(image);
}

inline Manifest SampleManifest(const std::string& name, uint64_t step, const std::string& job_id = kJob) {
  Manifest manifest;
  manifest.job_id = job_id;
  manifest.name = name;
  manifest.step = step;
  manifest.generation = 3;
  manifest.version = "0.1.0";
  return manifest;
}

// Writes and commits a checkpoint whose only node is `node`; its values' seed is its step.
inline absl::StatusOr<Manifest> Save(Store& store, Manifest manifest, const std::string& node = "node-0") {
  const Image image = SampleImage(SampleEntries(), static_cast<float>(manifest.step));
  absl::StatusOr<Part> part = store.WritePart(manifest, node, image, nullptr);
  if (!part.ok()) return part.status();
  manifest.parts.push_back(*part);
  const absl::Status committed = store.Commit(manifest);
  if (committed.ok()) return manifest;
  store.Discard(manifest, *part);
  return committed;
}

// The checkpoint is there, whole, and has the values of its step.
inline absl::Status Load(const Store& store, const std::string& name, uint64_t step, const std::string& job_id = kJob) {
  const absl::StatusOr<Manifest> manifest = store.Find(job_id, name);
  if (!manifest.ok()) return manifest.status();
  if (manifest->step != step) return absl::InternalError("of another step");
  const Image wanted = SampleImage(SampleEntries(), static_cast<float>(step));
  for (const Part& part : manifest->parts) {
    absl::StatusOr<std::unique_ptr<ArraySource>> reader = store.OpenPart(*manifest, part);
    if (!reader.ok()) return reader.status();
    if ((*reader)->entries() != wanted.entries()) return absl::InternalError("other entries");
    for (size_t i = 0; i < wanted.entries().size(); ++i) {
      std::vector<float> values(wanted.values(i).size());
      const absl::Status read = (*reader)->Read(i, values);
      if (!read.ok()) return read;
      if (!std::equal(values.begin(), values.end(), wanted.values(i).begin())) return absl::InternalError("other values");
    }
  }
  return store.Verify(*manifest, nullptr);
}

}  // namespace dmuon::checkpoint
