// CRC-32C of eight bytes at a time by an instruction (SSE4.2, Arm CRC), or of one byte by a table
// of 256 entries.
#include "crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace ds::io {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // 0x1EDC6F41 with its bits reversed

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
#if defined(__clang__)  // clang requires crc32 in addition to SSE4.2
#define DS_CRC_TARGET __attribute__((target("sse4.2,crc32")))
#else
#define DS_CRC_TARGET __attribute__((target("sse4.2")))
#endif
DS_CRC_TARGET uint64_t add_word(uint64_t crc, uint64_t word) { return _mm_crc32_u64(crc, word); }
DS_CRC_TARGET uint32_t add_byte(uint32_t crc, uint8_t byte) { return _mm_crc32_u8(crc, byte); }
bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__linux__)
#define DS_CRC_TARGET __attribute__((target("+crc")))
DS_CRC_TARGET uint64_t add_word(uint64_t crc, uint64_t word) {
  return __builtin_aarch64_crc32cx(static_cast<uint32_t>(crc), word);
}
DS_CRC_TARGET uint32_t add_byte(uint32_t crc, uint8_t byte) {
  return __builtin_aarch64_crc32cb(crc, byte);
}
bool has_instruction() { return (getauxval(AT_HWCAP) & (1u << 7)) != 0; }  // HWCAP_CRC32
#endif

#if defined(DS_CRC_TARGET)
DS_CRC_TARGET uint32_t by_instruction(uint32_t crc, const unsigned char* at, size_t bytes) {
  uint64_t state = ~crc;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    state = add_word(state, word);
  }
  auto tail = static_cast<uint32_t>(state);
  for (; bytes > 0; --bytes, ++at) tail = add_byte(tail, *at);
  return ~tail;
}
#endif

}  // namespace

uint32_t crc32c_by_table(uint32_t crc, const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kTable[(crc ^ at[i]) & 0xFF];
  return ~crc;
}

uint32_t crc32c(uint32_t crc, const void* data, size_t bytes) {
#if defined(DS_CRC_TARGET)
  static const bool supported = has_instruction();
  if (supported) return by_instruction(crc, static_cast<const unsigned char*>(data), bytes);
#endif
  return crc32c_by_table(crc, data, bytes);
}

}  // namespace ds::io
