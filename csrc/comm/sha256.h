// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), by which a client proves the job's secret.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ds::comm {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::string_view data);
Digest hmac_sha256(std::string_view key, std::string_view data);

/// Compares digests in a time that does not depend on their bytes.
bool same_digest(const Digest& a, std::string_view b);

}  // namespace ds::comm
