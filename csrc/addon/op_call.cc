// Decodes an op's arguments from the argument block and runs it, without JavaScript objects.
#include "op_call.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "../cpu/cpu_device.h"
#include "../ops/all_ops.generated.h"
#include "fields.h"

namespace ds::addon {
namespace {

constexpr const char* kNames[] = {
#define DS_ROW(name) #name,
    DS_OP_LIST(DS_ROW)
#undef DS_ROW
};

/// Names of an op's operands in the order of its fields.
template <class Op>
constexpr const char* const* kOperands = nullptr;
#define DS_NAMES(name, ...)                                  \
  constexpr const char* kOperandsOf##name[] = {__VA_ARGS__}; \
  template <>                                                \
  constexpr const char* const* kOperands<name> = kOperandsOf##name;
DS_OPERAND_NAMES(DS_NAMES)
#undef DS_NAMES

DS_COLD void refuse_fraction(const char* op, double word) {
  throw Error("DS_ARGUMENT", op, "a whole number", number_text(word));
}

/// Returns a word of the block as an integer. Throws DS_ARGUMENT for NaN, fractions and values
/// outside int64.
int64_t integer_of(const char* op, double word) {
  if (word > -0x1p63 && word < 0x1p63) {
    const auto whole = static_cast<int64_t>(word);  // a cast, because trunc() is a function call
    if (static_cast<double>(whole) == word) return whole;
  }
  refuse_fraction(op, word);
}

/// Reads arguments from the block. A view is [handle, dtype, ndim, offset, shape..., strides...];
/// an absent view is [0]. Numbers, booleans and enums take one word. A struct is the sequence of
/// its fields.
class Reader {
 public:
  Reader(Addon& addon, const char* op, const char* const* operands, Device& device, bool on_host)
      : addon_(addon),
        op_(op),
        operands_(operands),
        device_(device),
        on_host_(on_host),
        at_(addon.arguments),
        end_(addon.arguments + addon.argument_count) {}

  void operator()(OptionalView& view) {
    const char* const name = *operands_++;
    const double handle = next();
    if (handle != 0) read(name, handle, view);
  }
  void operator()(View& view) {
    const char* const name = *operands_++;
    const double handle = next();
    if (handle == 0) refuse_none(name);
    read(name, handle, view);
  }
  void operator()(double& x) { x = next(); }
  void operator()(int64_t& x) { x = next_int(); }
  void operator()(bool& x) { x = next() != 0; }
  template <class E>
    requires std::is_enum_v<E>
  void operator()(E& x) {
    x = static_cast<E>(static_cast<int32_t>(next_int()));
  }
  template <class S>
    requires std::is_class_v<S>
  void operator()(S& x) {
    for_each_field(x, *this);
  }

 private:
  void read(const char* name, double handle, View& view) {
    const Buffer& buffer = *Handle<Buffer>::of(addon_.buffers, handle, {op_, name});
    if (!reachable(buffer)) refuse_place(name, buffer);
    const double* const head = take(3);
    const int64_t dtype = integer_of(op_, head[0]), ndim = integer_of(op_, head[1]);
    const int64_t offset = integer_of(op_, head[2]);
    if (dtype < 0 || dtype >= kDTypes || ndim < 0 || ndim > kMaxDims) {
      refuse_kind(name, dtype, ndim);
    }
    view.dtype = static_cast<DType>(dtype);
    view.ndim = static_cast<int32_t>(ndim);
    const double *const sizes = take(2 * ndim), *const steps = sizes + ndim;
    for (int d = 0; d < view.ndim; ++d) {
      view.shape[d] = integer_of(op_, sizes[d]);
      view.strides[d] = integer_of(op_, steps[d]);
    }
    const int64_t first = first_byte(view, offset, buffer.bytes());
    if (first < 0) refuse_bounds(name, view, offset, buffer);
    view.data = static_cast<char*>(buffer.data()) + first;
  }

  /// Returns the next `count` words of the block.
  const double* take(int64_t count) {
    if (end_ - at_ < count) refuse_block();
    return std::exchange(at_, at_ + count);
  }
  double next() { return *take(1); }
  int64_t next_int() { return integer_of(op_, next()); }

  bool reachable(const Buffer& buffer) const {
    const bool on_device = &buffer.device() == &device_ && buffer.placement() == Placement::device;
    if (on_device && !on_host_) return true;
    return in_host_memory(buffer) && (on_host_ || &device_ == &cpu::cpu_device());
  }
  static bool in_host_memory(const Buffer& buffer) {
    return buffer.placement() == Placement::pinned || &buffer.device() == &cpu::cpu_device();
  }

  /// Returns the byte offset of the view's first element. Returns -1 if the view exceeds the
  /// buffer, or if its size in bytes exceeds int64 (with broadcast dims expanded). An empty view
  /// may have any offset.
  static int64_t first_byte(const View& view, int64_t offset, size_t bytes) {
    const auto element = static_cast<int64_t>(size_of(view.dtype));
    int64_t end = 0, size = element, step = 0;
    bool empty = false, wrong = offset < 0 || __builtin_add_overflow(offset, 1, &end);
    for (int d = 0; d < view.ndim; ++d) {
      const int64_t length = view.shape[d], stride = view.strides[d];
      wrong |= length < 0 || stride < 0;
      if (wrong) break;
      empty |= length == 0;
      wrong |= __builtin_mul_overflow(size, std::max<int64_t>(length, 1), &size);
      if (length == 0) continue;
      wrong |= __builtin_mul_overflow(length - 1, stride, &step);
      wrong |= __builtin_add_overflow(end, step, &end);
    }
    wrong |= !empty &&
             (__builtin_mul_overflow(end, element, &end) || static_cast<uint64_t>(end) > bytes);
    if (wrong) return -1;
    return empty ? 0 : offset * element;
  }

  DS_COLD void refuse(ErrorCode code, const std::string& expected, const std::string& got,
                      const char* hint = "") const {
    throw Error(code, op_, expected, got, hint);
  }
  DS_COLD void refuse_block() const {
    refuse("DS_INTERNAL", "a longer argument block", text(addon_.argument_count, " words"));
  }
  DS_COLD void refuse_none(const char* name) const {
    refuse("DS_ARGUMENT", text("a tensor as ", name), "none");
  }
  DS_COLD void refuse_kind(const char* name, int64_t dtype, int64_t ndim) const {
    if (dtype < 0 || dtype >= kDTypes) {
      refuse("DS_DTYPE", text("a known dtype of ", name), text(dtype));
    }
    refuse("DS_SHAPE", text("at most ", kMaxDims, " dims of ", name), text(ndim),
           "Join dims that belong together with reshape().");
  }
  DS_COLD void refuse_place(const char* name, const Buffer& buffer) const {
    refuse("DS_DEVICE", text(name, " in the memory of ", device_.info().name),
           in_host_memory(buffer) ? "a tensor in host memory"
                                  : text("a tensor on ", buffer.device().info().name),
           "Move the tensor first, for example with .to(device).");
  }
  DS_COLD void refuse_bounds(const char* name, const View& view, int64_t offset,
                             const Buffer& buffer) const {
    refuse("DS_BOUNDS", text(name, " inside its buffer of ", buffer.bytes(), " bytes"),
           text(describe_strides(view), " at element ", offset));
  }

  Addon& addon_;
  const char* op_;
  const char* const* operands_;  // the name of the next operand
  Device& device_;
  bool on_host_;
  const double *at_, *end_;  // the next word, and the end of the block
};

/// Checks that no two elements of a view share memory. Otherwise Fill of a few bytes could take
/// 2^60 writes.
void require_distinct(const char* op, const View& out) {
  int64_t extent = 1;
  for (int d = 0; d < out.ndim; ++d) {
    if (out.shape[d] == 0) return;
    extent += (out.shape[d] - 1) * out.strides[d];
  }
  if (out.numel() <= extent) return;
  throw Error("DS_BOUNDS", op, "out without repeated elements", describe_strides(out));
}

/// Reads the arguments of the op in the block and checks its preconditions.
template <class Op>
Op read_op(Addon& addon, Device& device, bool on_host) {
  Op args{};
  Reader reader(addon, kNames[static_cast<int>(id_of<Op>)], kOperands<Op>, device, on_host);
  for_each_field(args, reader);
  check(args);
  if constexpr (std::is_same_v<Op, Fill>) require_distinct("fill", args.out);
  return args;
}

template <class Op>
void run_here(Addon& addon, StreamRef& at) {
  const Op args = read_op<Op>(addon, at.device, false);
  at.device.run(id_of<Op>, &args, at.stream);
}

template <class Op>
double time_here(Addon& addon, StreamRef& at, int32_t count) {
  const Op args = read_op<Op>(addon, at.device, false);
  const auto start = std::chrono::steady_clock::now();
  for (int32_t i = 0; i < count; ++i) at.device.run(id_of<Op>, &args, at.stream);
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / count;
}

template <class Op>
void run_later(Addon& addon, StreamRef& at) {
  const Op args = read_op<Op>(addon, at.device, true);
  at.device.launch_host(at.stream, [args, failure = addon.failure] {
    try {
      cpu::run_op(id_of<Op>, &args);
    } catch (const Error& error) {
      failure->set(error);
    } catch (const std::exception& error) {
      failure->set(unforeseen(kNames[static_cast<int>(id_of<Op>)], error));
    }
  });
}

using Call = void (*)(Addon&, StreamRef&);
using Timing = double (*)(Addon&, StreamRef&, int32_t);
constexpr Timing kTimed[] = {
#define DS_ROW(name) time_here<name>,
    DS_OP_LIST(DS_ROW)
#undef DS_ROW
};
constexpr Call kHere[] = {
#define DS_ROW(name) run_here<name>,
    DS_OP_LIST(DS_ROW)
#undef DS_ROW
};
constexpr Call kLater[] = {
#define DS_ROW(name) run_later<name>,
    DS_OP_LIST(DS_ROW)
#undef DS_ROW
};

}  // namespace

void run(Addon& addon) {
  if (addon.argument_count < 2) throw Error("DS_INTERNAL", "run", "an argument block", "none");
  const double* const words = addon.arguments + addon.argument_count - 2;
  addon.failure->rethrow();
  const OpNumber op = OpNumber::of(words[1], {"run", "op"});
  kHere[op](addon, *Handle<StreamRef>::of(addon.streams, words[0], {"run", "stream"}));
}
void run_on_host(Addon& addon, OpNumber op, Handle<StreamRef> stream) {
  addon.failure->rethrow();
  kLater[op](addon, *stream);
  addon.failure->rethrow();  // reports a failure of this call if streams run at once
}

double time_op(Addon& addon, OpNumber op, Handle<StreamRef> stream, RunCount count) {
  return kTimed[op](addon, *stream, count);
}

}  // namespace ds::addon
