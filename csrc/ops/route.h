// Routing: which experts a row goes to, and the weights of what they make of it. One row takes less time than a
// barrier.
namespace trimaran::TRIMARAN_ISA {

// The largest of n values in falling order, of equal ones the first first; NaN counts as minus infinity.
struct Largest {
  TRIMARAN_INLINE Largest(float* values, int* places, int most) : values(values), places(places), most(most) {}
  TRIMARAN_INLINE void offer(float value, int place) {
    if (!(value >= -__builtin_inff())) value = -__builtin_inff();
    if (count == most && !(value > values[count - 1])) return;
    int at = count < most ? count++ : count - 1;
    for (; at > 0 && value > values[at - 1]; at--) values[at] = values[at - 1], places[at] = places[at - 1];
    values[at] = value, places[at] = place;
  }
  float* values;
  int* places;
  int most, count = 0;
};

TRIMARAN_INLINE void softmax_scores(const float* logits, int n, float* scores) {
  const F16 least = set1(-__builtin_inff());
  F16 peak = least, sum = zero();
  for (int i = 0; i < n; i += 16) peak = max(peak, first_lanes(smaller(16, n - i), load(logits + i), least));
  const F16 top = set1(reduce_max(peak));
  for (int i = 0; i < n; i += 16) {
    const F16 e = exp2(mul(sub(load(logits + i), top), set1(1.44269504f)));
    sum = add(sum, first_lanes(smaller(16, n - i), e, zero()));
    store(scores + i, e);
  }
  const F16 total = set1(reduce_add(sum));
  for (int i = 0; i < n; i += 16) store(scores + i, div(load(scores + i), total));
}

TRIMARAN_INLINE void sigmoid_scores(const float* logits, int n, float* scores) {
  for (int i = 0; i < n; i += 16) {  // NaN, as the second operand, stays
    const F16 e = exp2(min(set1(126.f), mul(load(logits + i), set1(-1.44269504f))));
    store(scores + i, div(set1(1.f), add(set1(1.f), e)));
  }
}

// Of the groups only the best keep their values.
TRIMARAN_INLINE void close_groups(const Routing& op, float* choice) {
  const int size = op.experts / op.groups;
  float sums[kMostRoutes];
  int kept[kMostRoutes];
  bool open[kMostRoutes] = {};
  Largest best(sums, kept, op.top_groups);
  for (int g = 0; g < op.groups; g++) {
    float two[2];
    int places[2];
    Largest largest(two, places, 2);
    for (int i = 0; i < size; i++) largest.offer(choice[g * size + i], i);
    best.offer(two[1] + two[0], g);
  }
  for (int g = 0; g < op.top_groups; g++) open[kept[g]] = true;
  for (int e = 0; e < op.experts; e++) {
    if (!open[e / size]) choice[e] = -__builtin_inff();
  }
}

inline void route(const Routing& op, const float* logits, const float* bias, float* scratch, float* out) {
  const int n = op.experts, padded = (n + kStrip - 1) / kStrip * kStrip;
  float *scores = scratch, *choice = scratch + padded;
  op.softmax ? softmax_scores(logits, n, scores) : sigmoid_scores(logits, n, scores);
  for (int i = 0; i < n; i += 16) store(choice + i, bias ? add(load(scores + i), load(bias + i)) : load(scores + i));
  if (op.groups > 1) close_groups(op, choice);
  float values[kMostRoutes];
  int chosen[kMostRoutes];
  Largest best(values, chosen, op.top_k);
  for (int e = 0; e < n; e++) best.offer(choice[e], e);
  float sum = 0;
  for (int k = 0; k < op.top_k; k++) sum += scores[chosen[k]];
  for (int k = 0; k < op.top_k; k++) {
    const float weight = scores[chosen[k]];
    out[k] = float(chosen[k]);
    out[op.top_k + k] = (op.normalise ? weight / (sum + op.epsilon) : weight) * op.factor;
  }
}

}  // namespace trimaran::TRIMARAN_ISA
