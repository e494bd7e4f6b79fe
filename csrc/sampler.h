// Chooses the token of a row of logits. The options' meaning and every bit of the result are defined by the reference,
// src/trimaran/engine/sampler.py: a token depends on the row, the tokens so far, the key and the position alone.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace trimaran {

struct SamplerOptions {
  bool greedy;
  float sharpness;  // log2(e) / temperature
  int top_k;        // 0: off
  double top_p;
  float min_p;
  float repetition, presence, frequency;
  int64_t first_stop;  // stops are forbidden before this position
  std::vector<int32_t> stops, bias_ids;
  std::vector<float> bias;
  int logprobs;  // -1: none; 0: the chosen token's; n: and those of the n most likely
  uint64_t key;
};

// Distinct tokens of prompt and output, and how often each occurs in the output.
class History {
 public:
  explicit History(const std::vector<int32_t>& prompt);
  void add(int32_t token);

  struct Entry {
    int32_t token;
    float count;  // in the output
  };
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::unordered_map<int32_t, size_t> places_;
  std::vector<Entry> entries_;
};

// What one request asks for, and what it needs to remember. Not for two rows at a time.
class Sampler {
 public:
  // The prompt is only read when a penalty looks at the tokens so far.
  Sampler(SamplerOptions options, const std::vector<int32_t>& prompt);

  // Whether all ids that it was given are of a vocabulary.
  bool fits(int vocab) const { return least_id_ >= 0 && most_id_ < vocab; }

  const SamplerOptions options;
  const bool penalises;
  History history;

 private:
  int32_t least_id_ = 0, most_id_ = 0;
};

struct Likely {
  int32_t id;
  double logprob;
};

struct Choice {
  int32_t token;  // -1: the row holds what is not a finite number, or penalties have made it so
  double logprob;
  std::vector<Likely> top;
};

// The memory of one thread for rows of one length, and the algorithm.
class RowSampler {
 public:
  RowSampler(const Kernels& kernels, int vocab);

  // Changes `logits` while it works and leaves them as they were. Bit i of `mask` lets token i be taken; null: all.
  void choose(Sampler& sampler, float* logits, const uint32_t* mask, int64_t position, Choice& choice);

 private:
  // The entries that may be drawn: weights, in order of ids; ids null: all.
  struct Candidates {
    int n;
    const float* scores;
    const int32_t* ids;
  };

  Candidates list_allowed(const float* logits, const uint32_t* mask);
  void adjust(const Sampler& sampler, float* logits, bool forbid_stops);
  void set(float* logits, int32_t id, float value);
  void restore(float* logits);
  int best(const float* logits, float peak) const;
  int choose_listed(const SamplerOptions& options, Candidates listed, int64_t position);
  int sample(const SamplerOptions& options, Candidates candidates, float peak, int64_t position);
  Candidates top_k(const float* logits, float peak, int k);
  Candidates keep_top(int n, float peak, int k);
  float nucleus(int n, double mass);
  template <class Enough>
  float edge(int n, float most, Enough&& enough);
  int draw(int n, float least, double u) const;
  double total(int n) const;

  const Kernels& kernels_;
  const int vocab_;
  Arena memory_;
  float *maxima_, *weights_, *list_, *below_, *scores_, *masked_;
  int32_t* ids_;
  double* sums_;
  std::vector<std::pair<int32_t, float>> changed_;  // entries before they were adjusted
};

}  // namespace trimaran
