#include "sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "philox.h"

namespace trimaran {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504f;
constexpr int kListed = 4;  // a mask that allows less than this part of the vocabulary is made a list

int blocks(int n, int size) { return (n + size - 1) / size; }

// Floats in their order as integers: half-way between two of them, rounded up.
float between(float low, float high) {
  const auto order = [](int32_t bits) { return bits < 0 ? bits ^ 0x7FFFFFFF : bits; };
  const int64_t a = order(std::bit_cast<int32_t>(low)), b = order(std::bit_cast<int32_t>(high));
  return std::bit_cast<float>(order(int32_t((a + b + 1) >> 1)));
}

// The w-th word of a mask, without bits past the vocabulary.
uint32_t word(const uint32_t* mask, int w, int vocab) {
  const int bits = vocab - 32 * w;
  return bits < 32 ? mask[w] & ((1u << bits) - 1) : mask[w];
}

int count_allowed(const uint32_t* mask, int vocab) {
  int count = 0;
  for (int w = 0; w < blocks(vocab, 32); w++) count += std::popcount(word(mask, w, vocab));
  return count;
}

// Whether a mask leaves stop tokens alone: what an answer must look like goes before how long it must be.
bool only_stops(const std::vector<int32_t>& stops, const uint32_t* mask, int allowed) {
  for (int32_t id : stops) allowed -= mask[id / 32] >> (id % 32) & 1;
  return allowed == 0;
}

// The scores whose bit is set, minus infinity in place of the others. Four bits choose among sixteen masks of four
// floats, which compilers make vectors of.
void keep_allowed(const uint32_t* mask, const float* from, int n, float* to) {
  constexpr uint32_t kNone = std::bit_cast<uint32_t>(-kInfinity);
  constexpr auto kLanes = [] {
    std::array<std::array<uint32_t, 4>, 16> lanes{};
    for (int nibble = 0; nibble < 16; nibble++) {
      for (int i = 0; i < 4; i++) lanes[nibble][i] = nibble >> i & 1 ? ~0u : 0;
    }
    return lanes;
  }();
  const int whole = n / 4 * 4;
  for (int i = 0; i < whole; i += 4) {
    const auto& lanes = kLanes[mask[i / 32] >> (i % 32) & 15];
    uint32_t bits[4];
    std::memcpy(bits, from + i, sizeof bits);
    for (int j = 0; j < 4; j++) bits[j] = (bits[j] & lanes[j]) | (kNone & ~lanes[j]);
    std::memcpy(to + i, bits, sizeof bits);
  }
  for (int i = whole; i < n; i++) to[i] = mask[i / 32] >> (i % 32) & 1 ? from[i] : -kInfinity;
}

}  // namespace

// ---- a request
// -------------------------------------------------------------------------------------------------------

History::History(const std::vector<int32_t>& prompt) {
  for (int32_t token : prompt) {
    if (places_.try_emplace(token, entries_.size()).second) entries_.push_back({token, 0});
  }
}

void History::add(int32_t token) {
  const auto [place, is_new] = places_.try_emplace(token, entries_.size());
  if (is_new) entries_.push_back({token, 0});
  entries_[place->second].count += 1;
}

Sampler::Sampler(SamplerOptions o, const std::vector<int32_t>& prompt)
    : options(std::move(o)),
      penalises(options.repetition != 1 || options.presence != 0 || options.frequency != 0),
      history(penalises ? prompt : std::vector<int32_t>()) {
  const auto note = [this](int32_t id) { least_id_ = std::min(least_id_, id), most_id_ = std::max(most_id_, id); };
  for (int32_t id : options.stops) note(id);
  for (int32_t id : options.bias_ids) note(id);
  for (const History::Entry& e : history.entries()) note(e.token);
}

// ---- a row
// -----------------------------------------------------------------------------------------------------------

RowSampler::RowSampler(const Kernels& kernels, int vocab) : kernels_(kernels), vocab_(vocab) {
  constexpr size_t kSlack = 16;  // kernels write whole vectors
  const size_t row = vocab + kSlack;
  const size_t maxima = blocks(vocab, kMaximaBlock) + kSlack, sums = blocks(vocab, kSumBlock);
  memory_ = Arena(5 * Arena::padded(row * sizeof(float)) + Arena::padded(row * sizeof(int32_t)) +
                  Arena::padded(maxima * sizeof(float)) + Arena::padded(sums * sizeof(double)));
  maxima_ = memory_.take<float>(maxima), sums_ = memory_.take<double>(sums);
  weights_ = memory_.take<float>(row), list_ = memory_.take<float>(row), below_ = memory_.take<float>(row);
  scores_ = memory_.take<float>(row), masked_ = memory_.take<float>(row), ids_ = memory_.take<int32_t>(row);
}

void RowSampler::choose(Sampler& sampler, float* logits, const uint32_t* mask, int64_t position, Choice& choice) {
  const SamplerOptions& o = sampler.options;
  RowPeak peak = kernels_.scan_row(logits, vocab_, maxima_);
  choice.token = -1;
  if (!peak.finite) return;

  double log_sum = 0;  // log-probabilities are the model's own: before masks, penalties, temperature and filters
  choice.top.clear();
  if (o.logprobs >= 0) {
    kernels_.weigh_row(logits, vocab_, peak.value, kLog2E, 0, weights_, sums_);
    log_sum = double(peak.value) + std::log(total(vocab_));
    if (o.logprobs > 0) {
      const Candidates top = top_k(logits, peak.value, std::min(o.logprobs, vocab_));
      for (int i = 0; i < top.n; i++) choice.top.push_back({top.ids[i], double(top.scores[i]) - log_sum});
      std::stable_sort(choice.top.begin(), choice.top.end(),
                       [](const Likely& a, const Likely& b) { return a.logprob > b.logprob; });
    }
  }
  const int allowed = mask ? count_allowed(mask, vocab_) : vocab_;
  const bool listed = allowed < vocab_ / kListed;
  float* scores = mask && !listed ? masked_ : logits;
  if (scores == masked_) keep_allowed(mask, logits, vocab_, masked_);
  adjust(sampler, scores, position < o.first_stop && !(mask && only_stops(o.stops, mask, allowed)));
  if (listed) {
    choice.token = choose_listed(o, list_allowed(logits, mask), position);
  } else {
    if (scores == masked_ || !changed_.empty()) peak = kernels_.scan_row(scores, vocab_, maxima_);
    if (std::isfinite(peak.value)) {  // a penalty may overflow
      const bool cut = o.top_k > 0 && o.top_k < vocab_;
      choice.token = o.greedy ? best(scores, peak.value)
                     : cut    ? sample(o, top_k(scores, peak.value, o.top_k), peak.value, position)
                              : sample(o, {vocab_, scores, nullptr}, peak.value, position);
    }
  }
  restore(scores);
  if (choice.token < 0) return;
  choice.logprob = double(logits[choice.token]) - log_sum;
  if (sampler.penalises) sampler.history.add(choice.token);
}

void RowSampler::set(float* logits, int32_t id, float value) {
  changed_.emplace_back(id, logits[id]);
  logits[id] = value;
}

void RowSampler::adjust(const Sampler& sampler, float* logits, bool forbid_stops) {
  const SamplerOptions& o = sampler.options;
  changed_.clear();
  for (size_t i = 0; i < o.bias_ids.size(); i++) set(logits, o.bias_ids[i], logits[o.bias_ids[i]] + o.bias[i]);
  if (forbid_stops) {
    for (int32_t id : o.stops) set(logits, id, -kInfinity);
  }
  for (const History::Entry& e : sampler.history.entries()) {
    const float x = logits[e.token], seen = x > 0 ? x / o.repetition : x * o.repetition;
    set(logits, e.token, seen - (e.count > 0 ? o.presence : 0.f) - o.frequency * e.count);
  }
}

void RowSampler::restore(float* logits) {
  for (size_t i = changed_.size(); i-- > 0;) logits[changed_[i].first] = changed_[i].second;
}

// The lowest id of the largest score.
int RowSampler::best(const float* logits, float peak) const {
  const int block = int(std::find(maxima_, maxima_ + blocks(vocab_, kMaximaBlock), peak) - maxima_);
  return int(std::find(logits + block * kMaximaBlock, logits + vocab_, peak) - logits);
}

// The scores whose bit is set: where there are few, this is all that need be looked at.
RowSampler::Candidates RowSampler::list_allowed(const float* logits, const uint32_t* mask) {
  int n = 0;
  for (int w = 0; w < blocks(vocab_, 32); w++) {
    for (uint32_t bits = word(mask, w, vocab_); bits; bits &= bits - 1) {
      const int id = 32 * w + std::countr_zero(bits);
      scores_[n] = logits[id], ids_[n++] = id;
    }
  }
  return {n, scores_, ids_};
}

int RowSampler::choose_listed(const SamplerOptions& o, Candidates c, int64_t position) {
  const float* largest = std::max_element(c.scores, c.scores + c.n);  // of equal ones the first
  if (c.n == 0 || !std::isfinite(*largest)) return -1;
  if (o.greedy) return c.ids[largest - c.scores];
  const float peak = *largest;
  return sample(o, o.top_k > 0 && o.top_k < c.n ? keep_top(c.n, peak, o.top_k) : c, peak, position);
}

int RowSampler::sample(const SamplerOptions& o, Candidates c, float peak, int64_t position) {
  const bool cut = o.top_p < 1;
  float least = cut ? 0 : o.min_p;
  kernels_.weigh_row(c.scores, c.n, peak, o.sharpness, least, weights_, sums_);
  if (cut) {
    least = std::max(nucleus(c.n, o.top_p), o.min_p);
    kernels_.sum_heavy(weights_, c.n, least, sums_);
  }
  const int choice = draw(c.n, least, uniform(o.key, uint64_t(position)));
  return c.ids ? c.ids[choice] : choice;
}

// The k largest scores, of equal ones those of lower ids; in order of ids.
RowSampler::Candidates RowSampler::top_k(const float* logits, float peak, int k) {
  const auto enough = [k](int count, double) { return count >= k; };
  const int all = blocks(vocab_, kMaximaBlock);
  float least = -kInfinity;  // k blocks have a maximum that is no less: so have k scores
  if (k <= all) {
    std::copy_n(maxima_, all, list_);
    least = edge(all, peak, enough);
  }
  int n = 0;
  for (int block = 0; block < all; block++) {
    if (maxima_[block] < least) continue;
    const int end = std::min(vocab_, (block + 1) * kMaximaBlock);
    for (int id = block * kMaximaBlock; id < end; id++) {
      scores_[n] = logits[id], ids_[n] = id;
      n += logits[id] >= least;
    }
  }
  return keep_top(n, peak, k);
}

// The same of scores_[0, n), whose ids_ ascend.
RowSampler::Candidates RowSampler::keep_top(int n, float peak, int k) {
  std::copy_n(scores_, n, list_);
  const float least = edge(n, peak, [k](int count, double) { return count >= k; });
  int equal = k - int(std::count_if(scores_, scores_ + n, [least](float x) { return x > least; }));
  int kept = 0;
  for (int i = 0; i < n; i++) {
    if (scores_[i] < least || (scores_[i] == least && equal-- <= 0)) continue;
    scores_[kept] = scores_[i], ids_[kept++] = ids_[i];
  }
  return {kept, scores_, ids_};
}

// The lightest weight of the nucleus: tokens at least this heavy are the fewest that hold `mass` of the weights' sum,
// and those that tie with the last of them.
float RowSampler::nucleus(int n, double mass) {
  const double all = total(n), target = mass * all;
  // Whatever is lighter than this is in no nucleus: n such weights are less than what it may leave out.
  const double spare = 1 - mass;
  const float cutoff = spare < 1e-9 ? 0.f : float(0.999 * spare * all / n);  // else near the target's rounding
  const int kept = kernels_.keep_heavy(weights_, n, cutoff, list_);
  return edge(kept, 1, [target](int, double sum) { return sum >= target; });
}

// The largest t for which the numbers >= t of list_[0, n) are enough, given their count and sum; of all, they are.
// `most` is the largest. A quick-select whose pivots halve the range in the order of floats.
template <class Enough>
float RowSampler::edge(int n, float most, Enough&& enough) {
  constexpr int kShort = 48;
  int above = 0;  // numbers that have left the list because they are surely >= t
  double sum = 0;
  float least = -kInfinity;
  while (n > kShort && least < most) {
    const float pivot = between(least, most);
    const Parts parts = kernels_.part_list(list_, n, pivot, below_);
    if (enough(above + parts.above, sum + parts.sum)) {
      n = parts.above, least = parts.least;
    } else {
      above += parts.above, sum += parts.sum;
      n -= parts.above, most = parts.most;
      std::swap(list_, below_);
    }
  }
  if (n > kShort) return most;  // all that is left is equal
  std::sort(list_, list_ + n, std::greater<>());
  for (int i = 0; i < n; i++) {
    sum += list_[i];
    if (enough(++above, sum)) return list_[i];
  }
  return list_[n - 1];
}

double RowSampler::total(int n) const {
  double sum = 0;
  for (int b = 0; b < blocks(n, kSumBlock); b++) sum += sums_[b];
  return sum;
}

// The place at which the running sum of the weights >= least, whose sums by block are known, passes u times their
// total.
int RowSampler::draw(int n, float least, double u) const {
  const double target = u * total(n);
  double sum = 0;
  int last = 0;
  for (int b = 0; b < blocks(n, kSumBlock); b++) {
    if (sum + sums_[b] <= target) {
      sum += sums_[b];
      if (sums_[b] > 0) last = b;
      continue;
    }
    for (int i = b * kSumBlock;; i++) {
      if (weights_[i] >= least) sum += weights_[i];
      if (sum > target) return i;
    }
  }
  int i = std::min(n, (last + 1) * kSumBlock) - 1;  // rounding has carried the target up to the total
  while (weights_[i] == 0 || weights_[i] < least) i--;
  return i;
}

}  // namespace trimaran
