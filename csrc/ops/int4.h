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

// Where a token's fine terms of a key lie: [dimensions / 32][16 tokens]{scale, minimum + 128 of 16 dimensions, of the
// others}, then in bf16 the units of 16 tokens' scales, and of their minima.
TRIMARAN_INLINE uint8_t* fine_terms(uint8_t* terms, int token, int i) {
  return terms + (i / kGroup * kTileTokens + token) * 4 + i % kGroup / kFineGroup * 2;
}
TRIMARAN_INLINE const uint8_t* fine_terms(const uint8_t* terms, int token, int i) {
  return terms + (i / kGroup * kTileTokens + token) * 4 + i % kGroup / kFineGroup * 2;
}
TRIMARAN_INLINE uint8_t* fine_units(uint8_t* terms, int d) {
  return terms + (d + kGroup - 1) / kGroup * kTileTokens * 4;
}
TRIMARAN_INLINE const uint8_t* fine_units(const uint8_t* terms, int d) {
  return terms + (d + kGroup - 1) / kGroup * kTileTokens * 4;
}

// A key of a wide head, in groups of 16: as above, but a group's minimum is a whole number, rounded down, of units of
// the largest / 127, and its scale one, rounded up, of units of the widest / 255; units are in bf16.
TRIMARAN_INLINE bool round_fine_groups(const float* x, int d, int8_t* q, uint8_t* terms, int token) {
  auto* units = reinterpret_cast<uint16_t*>(fine_units(terms, d)) + token;
  float most = 0.f;
  bool finite = true;
  for (int i = 0; i < d; i += kFineGroup) {
    const F16 v = load(x + i);
    const float low = -reduce_max(sub(zero(), v)), range = reduce_max(v) - low;
    finite = finite && !any_nan(v, v) && range <= kLargest;
    if (finite && low > most) most = low;
    if (finite && -low > most) most = -low;
  }
  units[kTileTokens] = to_bf16(finite && most > kTiny ? most / 127.f : 0.f);
  const float unit = from_bf16(units[kTileTokens]), inverse = unit > 0.f ? 1.f / unit : 0.f;
  float widest = 0.f;
  for (int i = 0; i < d; i += kFineGroup) {
    const F16 v = load(x + i);
    const float low = finite ? -reduce_max(sub(zero(), v)) * inverse : 0.f;
    int floor = int(low);
    floor -= float(floor) > low ? 1 : 0;
    floor = bigger(-128, smaller(127, floor));
    fine_terms(terms, token, i)[1] = uint8_t(floor + 128);
    const float range = finite ? reduce_max(v) - float(floor) * unit : 0.f;
    if (range > widest) widest = range;
  }
  units[0] = to_bf16(widest > kTiny ? widest / 15.f / 255.f : 0.f);
  const float step = from_bf16(units[0]), steps = step > 0.f ? 1.f / step : 0.f;
  for (int i = 0; i < d; i += kFineGroup) {
    uint8_t* to = fine_terms(terms, token, i);
    const F16 v = load(x + i);
    const float minimum = float(int(to[1]) - 128) * unit;
    const float range = finite ? (reduce_max(v) - minimum) / 15.f * steps : 0.f;
    int ceiling = int(range);
    ceiling += float(ceiling) < range ? 1 : 0;
    ceiling = bigger(0, smaller(255, ceiling));
    to[0] = uint8_t(ceiling);
    const float scale = float(ceiling) * step;
    const F16 n = mul(sub(v, set1(minimum)), set1(scale > 0.f ? 1.f / scale : 0.f));
    store_int8(q + i, finite ? to_int(max(zero(), min(set1(15.f), n))) : set1_int(0));
  }
  return finite;
}

}  // namespace trimaran::TRIMARAN_ISA
