#include "step.h"

#include <algorithm>
#include <climits>
#include <stdexcept>
#include <string>

namespace trimaran {
namespace {

void check(int64_t value, int64_t low, int64_t end, const char* what, int index) {
  if (value >= low && value < end) return;
  throw std::invalid_argument(std::string(what) + " " + std::to_string(value) + " at index " + std::to_string(index) +
                              " is not in [" + std::to_string(low) + ", " + std::to_string(end) + ")");
}

}  // namespace

void Step::load(const StepArrays& a, const StepLimits& limits, const std::vector<GroupLimits>& groups) {
  check(a.rows, 1, limits.max_rows + 1, "number of rows", 0);
  check(a.sequences, 1, limits.max_sequences + 1, "number of sequences", 0);
  check(a.logits, 0, limits.max_sequences + 1, "number of logits rows", 0);
  for (int i = 0; i < a.rows; i++) check(a.tokens[i], 0, limits.vocab, "token", i);
  for (int i = 0; i < a.logits; i++) check(a.logits_rows[i], 0, a.rows, "logits row", i);
  check(a.starts[0], 0, 1, "first row", 0);
  check(a.starts[a.sequences], a.rows, a.rows + 1, "last row", a.sequences);
  check(int64_t(a.page_tables.size()), int64_t(groups.size()), int64_t(groups.size()) + 1, "number of page tables", 0);
  int table_rows = INT_MAX, columns = INT_MAX;
  for (const PageTable& t : a.page_tables)
    table_rows = std::min(table_rows, t.rows), columns = std::min(columns, t.columns);
  sequences_.clear();
  for (int i = 0; i < a.sequences; i++) {
    check(a.starts[i + 1], int64_t(a.starts[i]) + 1, int64_t(a.rows) + 1, "row", i + 1);
    check(a.slots[i], 0, table_rows, "slot", i);
    const int rows = a.starts[i + 1] - a.starts[i];
    const int64_t most = std::min(int64_t(limits.max_positions), int64_t(columns) * limits.page_size) - rows;
    check(a.contexts[i], 0, most + 1, "context", i);
    const int count = (a.contexts[i] + rows + limits.page_size - 1) / limits.page_size;
    SequenceRows sequence{a.starts[i], rows, a.contexts[i], {}};
    for (size_t g = 0; g < groups.size(); g++) {
      const PageTable& table = a.page_tables[g];
      const int32_t* pages = table.pages + size_t(a.slots[i]) * table.columns;
      const int seen = first_seen(a.contexts[i], groups[g].window);
      for (int p = seen / limits.page_size; p < count; p++) check(pages[p], 0, groups[g].num_pages, "page", p);
      sequence.pages[g] = pages;
    }
    sequences_.push_back(sequence);
  }
  arrays_ = a;
}

void AttentionPlan::add_sequence(const SequenceRows& s, int index) {
  const int rows = s.rows * group_, tiles = (rows + kUnitRows - 1) / kUnitRows;
  const bool store = s.rows == 1 && tiles == 1;
  for (int r = 0; r < s.rows && !store; r++) stores_.push_back({index, s.first_row + r});
  for (int head = 0; head < kv_heads_; head++) {
    for (int t = 0, row = 0; t < tiles; t++) {
      const int n = (rows - row + tiles - t - 1) / (tiles - t);
      const int first = first_seen(s.context + row / group_, window_) / kBlockTokens;
      const int blocks = (s.context + (row + n - 1) / group_) / kBlockTokens + 1 - first;
      units_.push_back({index, head, row, n, first, blocks, first, blocks, -1, -1, store});
      row += n;
    }
  }
}

// The blocks of rows that are shared out are merged by whoever finishes last.
void AttentionPlan::split_long_rows() {
  pieces_.clear();
  share_out_blocks(
      units_, threads_, head_dim_,
      [&](AttentionUnit& u, int pieces) {
        u.group = int(pieces_.size());
        pieces_.push_back(pieces);
      },
      [](AttentionUnit& piece, bool last) {
        piece.store = piece.store && last;
      });  // the new token is in the last block
  if (pending_size_ < pieces_.size()) {
    pending_size_ = pieces_.size();
    pending_.reset(new std::atomic<int>[pending_size_]);
  }
  for (size_t i = 0; i < pieces_.size(); i++) pending_[i].store(pieces_[i], std::memory_order_relaxed);
}

void AttentionPlan::cut(const Step& step) {
  units_.clear();
  stores_.clear();
  const auto& sequences = step.sequences();
  for (size_t i = 0; i < sequences.size(); i++) add_sequence(sequences[i], int(i));
  if (!stores_.empty()) {  // chunks of prompts: units differ much in length, so the long ones go first
    std::stable_sort(units_.begin(), units_.end(), [](const AttentionUnit& a, const AttentionUnit& b) {
      return int64_t(a.rows) * a.blocks > int64_t(b.rows) * b.blocks;
    });
  }
  split_long_rows();
}

}  // namespace trimaran
