#include "attention_plan.h"

#include <algorithm>

namespace trimaran {

// Rows that need logits and follow one another in one sequence are a sequence of their own.
void AttentionPlan::find_sequences(const Step& step) {
  sequences_.clear();
  if (!shape_.taken) {
    sequences_ = step.sequences();
    return;
  }
  for (int i = 0; i < step.logits(); i++) {
    const int row = step.logits_rows()[i];
    const SequenceRows& s = step.sequence_of(row);
    if (row > s.first_row && !sequences_.empty() && sequences_.back().first_row + sequences_.back().rows == row) {
      sequences_.back().rows++;
    } else {
      SequenceRows run = s;
      run.first_row = row, run.rows = 1, run.context = s.context + row - s.first_row, run.out_row = i;
      sequences_.push_back(run);
    }
  }
}

// One sequence in units of its own.
void AttentionPlan::add_sequence(const SequenceRows& s, int index) {
  const int group = shape_.heads / shape_.kv_heads;
  const int rows = rows_of(s), tiles = (rows + kUnitRows - 1) / kUnitRows, part = int(parts_.size());
  const bool store = stores_itself(s);
  for (int t = 0, row = 0; t < tiles; t++) {
    const int n = (rows - row + tiles - t - 1) / (tiles - t);
    parts_.push_back({index, row, n, 0, store});
    row += n;
  }
  for (int head = 0; head < shape_.kv_heads; head++) {
    for (int t = 0; t < tiles; t++) {
      const UnitPart& p = parts_[part + t];
      const int first = first_seen(s.context + p.row / group, shape_.window) / kBlockTokens;
      const int last = shape_.causal ? (p.row + p.rows - 1) / group : s.rows - 1;
      const int blocks = (s.context + last) / kBlockTokens + 1 - first;
      units_.push_back({head, part + t, 1, p.rows, first, blocks, first, blocks, -1, -1});
    }
  }
}

// Items [first, end) of the order, each of which shares a block with the one before it: in units of about equal size.
void AttentionPlan::add_sharers(int first, int end) {
  const int head_units = int(units_.size());
  int rows_left = 0, last_block = 0;
  for (int i = first; i < end; i++) rows_left += rows_of(sequences_[prefixes_.items()[i].sequence]);
  int units_left = (rows_left + kUnitRows - 1) / kUnitRows, most = 0;
  for (int i = first; i < end; i++) {
    const PrefixOrder::Item& item = prefixes_.items()[i];
    const SequenceRows& s = sequences_[item.sequence];
    const int rows = rows_of(s);
    if (i == first || units_.back().rows + rows > most) {
      most = std::min(kUnitRows, std::max(rows, (rows_left + units_left - 1) / units_left));
      units_left = std::max(1, units_left - 1), last_block = 0;
      units_.push_back({0, int(parts_.size()), 0, 0, 0, 0, 0, 0, -1, -1});
    }
    AttentionUnit& u = units_.back();
    last_block = std::max(last_block, (s.context + s.rows - 1) / kBlockTokens);
    u.parts++, u.rows += rows, u.blocks = u.total_blocks = last_block + 1;
    rows_left -= rows;
    parts_.push_back({item.sequence, 0, rows, shared_blocks(item), stores_itself(s)});
  }
  // Units of one kv head, which read the same pages, lie beside each other.
  for (int head = 1, units = int(units_.size()); head < shape_.kv_heads; head++) {
    for (int i = head_units; i < units; i++) {
      AttentionUnit u = units_[i];
      u.kv_head = head;
      units_.push_back(u);
    }
  }
}

// The blocks of rows that are shared out are merged by whoever finishes last.
void AttentionPlan::split_long_rows() {
  pieces_.clear();
  share_out_blocks(units_, threads_, shape_.head_dim, [&](AttentionUnit& u, int pieces) {
    u.group = int(pieces_.size());
    pieces_.push_back(pieces);
  });
  if (pending_size_ < pieces_.size()) {
    pending_size_ = pieces_.size();
    pending_.reset(new std::atomic<int>[pending_size_]);
  }
  for (size_t i = 0; i < pieces_.size(); i++) pending_[i].store(pieces_[i], std::memory_order_relaxed);
}

void AttentionPlan::cut(const Step& step) {
  units_.clear();
  parts_.clear();
  stores_.clear();
  prefixes_.clear();
  find_sequences(step);
  for (int i = 0; i < int(step.sequences().size()); i++) {
    const SequenceRows& s = step.sequences()[i];
    for (int r = 0; r < s.rows && !stores_itself(s); r++) stores_.push_back({i, s.first_row + r});
  }
  for (int i = 0; i < int(sequences_.size()); i++) {
    if (share_prefixes_ && rows_of(sequences_[i]) <= kUnitRows) {
      prefixes_.add(i, sequences_[i]);
    } else {
      add_sequence(sequences_[i], i);
    }
  }
  prefixes_.sort();
  const auto& items = prefixes_.items();
  for (int first = 0, end; first < int(items.size()); first = end) {
    for (end = first + 1; end < int(items.size()) && shared_blocks(items[end]) > 0;) end++;
    if (end - first > 1) {
      add_sharers(first, end);
    } else {
      add_sequence(sequences_[items[first].sequence], items[first].sequence);
    }
  }
  if (!stores_.empty()) {  // chunks of prompts: units differ much in length, so the long ones go first
    std::stable_sort(units_.begin(), units_.end(), [](const AttentionUnit& a, const AttentionUnit& b) {
      return int64_t(a.rows) * a.blocks > int64_t(b.rows) * b.blocks;
    });
  }
  split_long_rows();
}

}  // namespace trimaran
