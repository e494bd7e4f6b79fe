// How the numbers of a key or a value become int4.
namespace trimaran::TRIMARAN_ISA {

// Rounded half to even.
TRIMARAN_INLINE uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
TRIMARAN_INLINE float from_bf16(uint16_t x) { return bits_to_float(uint32_t(x) << 16); }

// A value: q = round half to even (x / scale + 7.5) with scale = absmax / 7.5 in bf16; false if not finite.
TRIMARAN_INLINE bool round_value(const float* x, int d, int8_t* q, uint16_t* scale) {
  const float absmax = largest(x, d);
  const bool finite = absmax <= kLargest, some = finite && absmax > kTiny;
  *scale = to_bf16(some ? absmax / 7.5f : 0.f);
  const F16 inverse = set1(some ? 1.f / from_bf16(*scale) : 0.f), middle = set1(7.5f);
  for (int i = 0; i < d; i += 16) {
    store_int8(q + i, some ? to_int(add(mul(load(x + i), inverse), middle)) : set1_int(0));
  }
  return finite;
}

// A key, in groups: q = round half to even ((x - minimum) / scale) within 0..15, with scale = (maximum - minimum) / 15,
// both in bf16. A group's scale lies at scales[0], its minimum `apart` further on. False if a number is not finite.
TRIMARAN_INLINE bool round_groups(const float* x, int d, int8_t* q, uint16_t* scales, int apart) {
  bool all_finite = true;
  for (int first = 0; first < d; first += kGroup, scales += 2 * apart) {
    const int end = smaller(d, first + kGroup);
    F16 top = load(x + first), bottom = top;
    bool nan = any_nan(top, top);
    for (int i = first + 16; i < end; i += 16) {
      const F16 v = load(x + i);
      nan |= any_nan(v, v);
      top = max(top, v), bottom = min(bottom, v);
    }
    const float low = -reduce_max(sub(zero(), bottom)), range = reduce_max(top) - low;
    const bool finite = !nan && range <= kLargest;
    scales[apart] = to_bf16(finite ? low : 0.f);
    const float minimum = from_bf16(scales[apart]), spread = reduce_max(top) - minimum;
    const bool some = finite && spread > kTiny;
    scales[0] = to_bf16(some ? spread / 15.f : 0.f);
    const F16 inverse = set1(some ? 1.f / from_bf16(scales[0]) : 0.f), from = set1(minimum);
    for (int i = first; i < end; i += 16) {
      const F16 n = max(zero(), min(set1(15.f), mul(sub(load(x + i), from), inverse)));
      store_int8(q + i, some ? to_int(n) : set1_int(0));
    }
    all_finite = all_finite && finite;
  }
  return all_finite;
}

}  // namespace trimaran::TRIMARAN_ISA
