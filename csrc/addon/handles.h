// Handles: numbers with a generation, so that a released handle causes an error instead of naming a
// newer object.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "../core/error.h"

/// Marks functions that throw errors. They stay out of line, so that the checks are small enough to
/// be inlined.
#define DS_COLD [[noreturn, gnu::cold, gnu::noinline]]

namespace ds::addon {

/// Objects by handle. A handle is generation * 2^24 + slot, which a double holds exactly. Slot 0 is
/// unused, so that 0 means no object. One environment owns the table and uses it on its thread.
template <class T>
class HandleTable {
 public:
  HandleTable(const char* noun, const char* hint) : noun_(noun), hint_(hint), slots_(1) {}

  double add(std::shared_ptr<T> object) {
    uint32_t slot;
    if (free_.empty()) {
      if (slots_.size() >= kSlots)
        throw Error("DS_LIMIT", noun_, text("at most ", kSlots - 1, " live handles"), "one more",
                    "Release objects that you no longer need.");
      slot = static_cast<uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    slots_[slot].object = std::move(object);
    return static_cast<double>(uint64_t{slots_[slot].generation} * kSlots + slot);
  }

  const std::shared_ptr<T>& get(double handle) const {
    const Slot* slot = slot_of(handle);
    if (!slot) refuse();
    return slot->object;
  }

  /// Returns null if no live object has this handle. Ignores a fraction.
  T* find(double handle) const {
    const Slot* slot = slot_of(handle);
    return slot ? slot->object.get() : nullptr;
  }

  /// The object's name in errors, and the hint of an error about a released handle.
  const char* noun() const { return noun_; }
  const char* hint() const { return hint_; }

  /// Releases a live handle and returns its object.
  std::shared_ptr<T> take(double handle) {
    const auto index = static_cast<uint32_t>(static_cast<uint64_t>(handle) % kSlots);
    Slot& slot = slots_[index];
    slot.generation = (slot.generation + 1) & kGenerationMask;
    free_.push_back(index);
    return std::move(slot.object);  // moved: a copy would count references with locked instructions
  }

  size_t live() const { return slots_.size() - 1 - free_.size(); }

 private:
  static constexpr uint64_t kSlots = uint64_t{1} << 24;
  static constexpr uint32_t kGenerationMask = (1u << 28) - 1;
  struct Slot {
    std::shared_ptr<T> object;
    uint32_t generation = 0;
  };

  const Slot* slot_of(double handle) const {
    if (!(handle >= 1 && handle < 0x1p52)) return nullptr;
    // A conversion to int64 has no branch, one to uint64 has.
    const auto whole = static_cast<uint64_t>(static_cast<int64_t>(handle));
    const uint64_t index = whole % kSlots;
    if (index >= slots_.size()) return nullptr;
    const Slot& slot = slots_[index];
    return slot.object && slot.generation == whole / kSlots ? &slot : nullptr;
  }

  DS_COLD void refuse() const {
    throw Error("DS_RELEASED", noun_, text("a live ", noun_), "one that was released", hint_);
  }

  const char *noun_, *hint_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace ds::addon
