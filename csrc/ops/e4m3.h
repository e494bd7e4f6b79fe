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

}  // namespace trimaran::TRIMARAN_ISA
