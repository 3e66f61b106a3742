// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Text tables for people: columns as wide as their widest cell, two spaces between, no lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dmuon::ctl {

enum class Align : uint8_t { kLeft, kRight };

struct Column {
  std::string head;
  Align align = Align::kLeft;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell a column, in their order; missing ones are empty.
  void Add(std::vector<std::string> cells);
  // Heads and rows, each line ended by a line break and free of trailing spaces.
  [[nodiscard]] std::string Text() const;
  [[nodiscard]] bool empty() const { return rows_.empty(); }

 private:
  [[nodiscard]] std::string Line(const std::vector<std::string>& cells,
                                 const std::vector<size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// "12.3 MiB", "512 B".
std::string BytesText(uint64_t bytes);
// "1.25 ms", "3.40 s", "0 s": three digits, a unit that fits.
std::string SecondsText(double seconds);

}  // namespace dmuon::ctl
