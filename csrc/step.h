// One step's inputs, checked, and how work on long rows is shared out.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace trimaran {

// The page tables of StepInputs (src/trimaran/kernels/step.py), and what their entries were made for. They belong to
// Python, which changes their numbers between steps, and are where they are until others are named.
struct PageTable {
  const int32_t* pages;  // [rows][columns]
  int rows, columns;
};

// Who holds the pages of a group [num_pages], and what a page table's entries [rows][columns] were made for: see
// src/trimaran/kernels/page_tags.py. They belong to Python and outlive the program, or the step.
struct PageTags {
  const int64_t* tags;  // null: none
  const uint64_t* owners;
};

struct PageTables {
  std::vector<PageTable> pages;    // by cache group
  std::vector<PageTags> expected;  // of each table's entries; empty where pages have no tags
};

// The other arrays of StepInputs. They belong to the caller and outlive the step.
struct StepArrays {
  const int32_t* tokens;
  int rows;
  const int32_t *starts, *contexts, *slots;
  int sequences;
  const uint64_t* readers;  // [sequences], or null where pages have no tags: whose rows of the tables these are
  const int32_t* logits_rows;
  int logits;
  const int32_t* types;  // of the rows; null: all 0
};

struct StepLimits {
  int vocab, result, max_rows, max_sequences, page_size, max_positions;
  int types = 0;  // that rows may have; 0: the program does not ask
};

// Pages of a cache group; with a window, those before the first row's are not looked at.
struct GroupLimits {
  int num_pages;
  int window;       // tokens; 0: none
  PageTags held{};  // who holds the pages
};

class Step {
 public:
  // What the steps from now on read pages by.
  void read_tables(PageTables tables) { tables_ = std::move(tables); }

  // Throws std::invalid_argument that names the first value out of range; nothing has been written then. Where pages
  // have tags, a page that is out of range, or not what its entry was made for, is no error: its sequence gets the null
  // page alone and is faulty.
  void load(const StepArrays& arrays, const StepLimits& limits, const std::vector<GroupLimits>& groups);

  int rows() const { return arrays_.rows; }
  int logits() const { return arrays_.logits; }
  const int32_t* tokens() const { return arrays_.tokens; }
  const int32_t* logits_rows() const { return arrays_.logits_rows; }
  const std::vector<SequenceRows>& sequences() const { return sequences_; }
  const SequenceRows& sequence_of(int row) const {
    const auto behind = [](int r, const SequenceRows& s) { return r < s.first_row; };
    return *(std::upper_bound(sequences_.begin(), sequences_.end(), row, behind) - 1);
  }
  int position_of(int row) const {
    const SequenceRows& s = sequence_of(row);
    return s.context + row - s.first_row;
  }
  int type_of(int row) const { return arrays_.types ? arrays_.types[row] : 0; }
  const std::vector<int>& faulty() const { return faulty_; }
  double check_seconds() const { return check_seconds_; }  // that comparing tags has taken

 private:
  void take_out_faulty(int page_size, const std::vector<GroupLimits>& groups);

  PageTables tables_;
  StepArrays arrays_{};
  std::vector<SequenceRows> sequences_;
  std::vector<int> faulty_;
  double check_seconds_ = 0;
  std::vector<int32_t> null_pages_;  // as many as a table has columns
};

// Floats of partial results that a plan may have: 256 MiB, of which only what was used takes memory. No memory plan
// counts them, so they are bounded: rows that find no room are one thread's alone.
constexpr size_t kMostPartials = size_t(64) << 20;
inline HugeMemory partials_for(int threads) { return HugeMemory(threads > 1 ? kMostPartials * sizeof(float) : 0); }

// Few units with many blocks leave threads idle: then their blocks are shared out, and the partial results merged. A
// unit becomes units of some of its blocks each; `shared(unit, pieces)` sees it before, with its place for partial
// results of `width` numbers.
template <class Unit, class Shared>
void share_out_blocks(std::vector<Unit>& units, int threads, int width, Shared&& shared) {
  constexpr int kUnitsPerThread = 4;
  const int wanted = threads > 1 ? threads * kUnitsPerThread : 1, have = int(units.size());
  if (have == 0 || have >= wanted) return;
  const int most = (wanted + have - 1) / have;
  std::vector<Unit> whole;
  whole.swap(units);
  int64_t partials = 0;
  for (Unit& u : whole) {
    const int64_t results = int64_t(u.rows) * u.total_blocks;
    const bool room = size_t(partials + results) * partial_stride(width) <= kMostPartials;
    const int pieces = room ? std::min(u.total_blocks, most) : 1;
    if (pieces > 1) {
      u.partial = partials;
      partials += results;
      shared(u, pieces);
    }
    for (int p = 0; p < pieces; p++) {
      Unit piece = u;
      piece.block = u.block + int(int64_t(u.total_blocks) * p / pieces);
      piece.blocks = u.block + int(int64_t(u.total_blocks) * (p + 1) / pieces) - piece.block;
      units.push_back(piece);
    }
  }
}

}  // namespace trimaran
