// A step's rows by the experts that they were routed to.
#pragma once
#include <vector>

#include "kernels.h"

namespace trimaran {

// The matrices of all experts, packed one after the other.
struct ExpertStack {
  Matrix one;  // the first
  int experts;
  size_t bytes;  // of each
};

constexpr int kPieceRows = 128;  // rows that stay in a core's cache while an expert's strips pass by

// Some of the rows of one expert: `rows` entries of the grouping's list from `first` on.
struct ExpertPiece {
  int expert, first, rows;
};

// What a member of the team knows of the running step: it is cheaper that each finds out than that all wait for one.
class ExpertGrouping {
 public:
  void reserve(int rows, int top_k, int experts);
  // `routes`: of each row, top_k experts (as floats) and their weights. An expert's rows keep their order.
  void sort(const float* routes, size_t stride, int rows, int top_k, int experts);

  const std::vector<ExpertPiece>& pieces() const { return pieces_; }  // by ascending expert
  const RoutedRow* list() const { return list_.data(); }              // by expert, then row

 private:
  std::vector<RoutedRow> list_;
  std::vector<int> ends_;  // by expert: where the next row goes, at last the end of its rows
  std::vector<ExpertPiece> pieces_;
};

// The most pieces that there can be: what stages are cut by, for it must not depend on data that may be gone.
constexpr int most_pieces(int rows, int top_k, int experts) {
  const int pairs = rows * top_k;
  return (pairs < experts ? pairs : experts) + pairs / kPieceRows;
}

// What one thread needs for itself.
struct alignas(128) ExpertWorker {
  ExpertGrouping grouping;
  Activations gathered{};  // [kPieceRows]
  float* tile = nullptr;   // [kPieceRows][kStrip]
  float* scores = nullptr;
};

}  // namespace trimaran
