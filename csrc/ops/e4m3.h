// Numbers of 8 bits: sign, 4 bits of exponent, 3 of mantissa; no infinities.
namespace trimaran::TRIMARAN_ISA {

struct E4m3 {
  uint8_t bits;
};

constexpr float kLargestE4m3 = 448.f;
constexpr uint8_t kNanE4m3 = 0x7F;

// The nearest number, ties to even; |x| <= kLargestE4m3.
TRIMARAN_INLINE uint8_t to_e4m3(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint8_t sign = uint8_t(bits >> 24 & 0x80);
  bits &= 0x7FFFFFFF;
  if (bits < 0x3C800000) {  // below 2^-6: multiples of 2^-9
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    return sign | uint8_t((magnitude * 512.f + 0x1.8p23f) - 0x1.8p23f);
  }
  return sign | uint8_t(((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - (120 << 3));
}

// How a vector becomes e4m3, with a scale of absmax / 448.
struct Scaled {
  bool finite, some;
  float inverse;  // what its numbers are multiplied with
  float scale;    // of the 256ths that are read back; 0 if not finite
  TRIMARAN_INLINE Scaled(const float* x, int d) {
    const float absmax = largest(x, d);
    finite = absmax <= kLargest, some = finite && absmax > kTiny;
    inverse = some ? kLargestE4m3 / absmax : 0.f;
    scale = some ? absmax * (256.f / kLargestE4m3) : 0.f;
  }
  TRIMARAN_INLINE uint8_t round(float x) const { return to_e4m3(some ? x * inverse : 0.f); }
};

}  // namespace trimaran::TRIMARAN_ISA
