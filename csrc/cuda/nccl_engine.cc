// Opens a communicator and starts collectives on streams.
#include "nccl_engine.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../core/error.h"
#include "cuda_device.h"
#include "cuda_error.h"
#include "entry.h"

namespace ds::cuda {

namespace {

using comm::Kind;

/// A wait polls this often without a pause, then sleeps between polls.
constexpr int kQuickLooks = 200;
constexpr std::chrono::microseconds kSleep{50};

nccl::DataType type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return nccl::DataType::f32;
    case DType::f16: return nccl::DataType::f16;
    case DType::bf16: return nccl::DataType::bf16;
    case DType::i32: return nccl::DataType::i32;
    case DType::i64: return nccl::DataType::i64;
    case DType::f64: return nccl::DataType::f64;
    default: return nccl::DataType::u8;
  }
}

nccl::Op op_of(comm::ReduceOp op) {
  switch (op) {
    case comm::ReduceOp::average: return nccl::Op::average;
    case comm::ReduceOp::minimum: return nccl::Op::minimum;
    case comm::ReduceOp::maximum: return nccl::Op::maximum;
    case comm::ReduceOp::product: return nccl::Op::product;
    default: return nccl::Op::sum;
  }
}

}  // namespace

/// A collective that is being enqueued, is enqueued, or was rejected by NCCL. A rejected one never
/// ends. Its fault becomes the job's failure on all ranks, which ends the callers' waits for it.
class NcclEngine::Pending final : public comm::Completion {
 public:
  explicit Pending(std::shared_ptr<NcclCommunicator> communicator)
      : communicator_(std::move(communicator)), end_(communicator_->make_end()) {}
  /// Records that the collective is enqueued.
  void mark(cudaStream_t stream) {
    communicator_->mark(end_, stream);
    state_.store(State::enqueued, std::memory_order_release);
  }
  /// Records that NCCL rejected the collective.
  void refuse(std::string reason) {
    reason_ = std::move(reason);
    state_.store(State::refused, std::memory_order_release);
  }

  bool done() override { return state() == State::enqueued && end_->done(); }
  bool ended() const override { return state() == State::enqueued && end_->ended(); }
  void order(Stream& stream) override {
    if (state() == State::refused) return synchronize();
    DS_CUDA(cudaStreamWaitEvent(stream_of(stream), end_->event(), cudaEventWaitDefault),
            "collective");
  }
  /// Polls, because a wait inside CUDA would not notice that an abort failed.
  void synchronize() override {
    for (int looks = 0; !free_again(); ++looks) {
      if (looks < kQuickLooks) std::this_thread::yield();
      else std::this_thread::sleep_for(kSleep);
    }
  }
  std::string fault() override {
    return state() == State::refused ? reason_ : communicator_->fault();
  }

 private:
  enum class State : uint8_t { begun, enqueued, refused };

  State state() const { return state_.load(std::memory_order_acquire); }
  bool free_again() {
    if (!communicator_->interrupted()) return done();
    return state() == State::refused || communicator_->over();
  }

  const std::shared_ptr<NcclCommunicator> communicator_;
  const std::shared_ptr<CollectiveEnd> end_;
  std::atomic<State> state_{State::begun};
  std::string reason_;  // written before `state_` becomes refused
};

namespace {

/// Returns the id of a new communicator. Rank 0 creates it; other ranks read it from the store.
nccl::UniqueId agree_on_id(const Nccl& nccl, const comm::Rendezvous& rendezvous) {
  nccl::UniqueId id;
  if (rendezvous.rank == 0) {
    const nccl::Result result = nccl.unique_id(&id);
    if (result != nccl::Result::success) {
      throw Error("DS_COMM", "NCCL", "an id for a new communicator", nccl.error_string(result));
    }
    rendezvous.set("nccl", std::string(id.internal, sizeof(id.internal)));
    return id;
  }
  const std::string bytes = rendezvous.get("nccl");
  if (bytes.size() != sizeof(id.internal)) {
    throw Error("DS_COMM", "NCCL", "the NCCL id of rank 0", text(bytes.size(), " bytes"));
  }
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

}  // namespace

NcclEngine::NcclEngine(const comm::Rendezvous& rendezvous, CudaDevice& device)
    : device_(device),
      size_(rendezvous.size),
      communicator_(NcclCommunicator::make(device.index())) {
  try {
    open(rendezvous);
  } catch (...) {
    close();
    throw;
  }
}

NcclEngine::~NcclEngine() { close(); }

void NcclEngine::open(const comm::Rendezvous& rendezvous) {
  device_.make_current();
  const nccl::UniqueId id = agree_on_id(communicator_->nccl, rendezvous);
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(rendezvous.timeout_ms);
  const auto is_waiting = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    rendezvous.check();
    return std::chrono::steady_clock::now() < deadline;
  };
  const nccl::Result state = communicator_->open(id, size_, rendezvous.rank, is_waiting);
  if (state != nccl::Result::success) {
    throw Error("DS_COMM", "NCCL", text("all ", size_, " ranks of the group to join"),
                state == nccl::Result::in_progress ? "ranks that did not join in time"
                                                   : communicator_->reason_of(state),
                "Give each rank its own GPU. NCCL_DEBUG=INFO prints details.");
  }
  DS_CUDA(cudaMalloc(&token_, 1), "newGroup");
}

void NcclEngine::close() noexcept {
  interrupt();
  if (communicator_->await_end()) cudaFree(token_);
  else device_.give_up();
}

void NcclEngine::interrupt() noexcept { communicator_->interrupt(); }

/// The first collective of a communicator connects its ranks, so NCCL returns only when all have
/// arrived. The watchdog already watches the collective and can interrupt this wait.
void NcclEngine::start(const comm::Collective& call, Stream& stream, uint64_t,
                       const comm::Begun& begun) {
  device_.make_current();
  communicator_->await_room();
  const cudaStream_t at = stream_of(stream);
  const auto pending = std::make_shared<Pending>(communicator_);
  begun(pending);
  try {
    std::string refusal;
    {
      const std::lock_guard lock(communicator_->mutex);
      if (!communicator_->interrupted()) refusal = communicator_->refusal_of(enqueue(call, at));
    }
    if (refusal.empty()) pending->mark(at);
    else pending->refuse(std::move(refusal));
  } catch (const std::exception& error) {
    pending->refuse(error.what());
    throw;
  }
}

nccl::Result NcclEngine::enqueue(const comm::Collective& call, cudaStream_t stream) {
  const Nccl& library = communicator_->nccl;
  nccl::Comm handle = communicator_->comm;
  const auto count = static_cast<size_t>(call.count);
  const nccl::DataType type = type_of(call.dtype);
  const nccl::Op op = op_of(call.op);
  switch (call.kind) {
    case Kind::all_reduce:
      return library.all_reduce(call.input, call.output, count, type, op, handle, stream);
    case Kind::reduce_scatter:
      return in_rows(call, static_cast<size_t>(size_), 1, [&](auto... at) {
        return library.reduce_scatter(at..., count, type, op, handle, stream);
      });
    case Kind::all_gather:
      return in_rows(call, 1, static_cast<size_t>(size_), [&](auto... at) {
        return library.all_gather(at..., count, type, handle, stream);
      });
    case Kind::broadcast:
      return library.broadcast(call.input, call.output, count, type, call.peer, handle, stream);
    case Kind::reduce:
      return library.reduce(call.input, call.output, count, type, op, call.peer, handle, stream);
    case Kind::all_to_all: return all_to_all(call, stream);
    case Kind::send: return library.send(call.input, count, type, call.peer, handle, stream);
    case Kind::receive: return library.receive(call.output, count, type, call.peer, handle, stream);
    case Kind::barrier:
      return library.all_reduce(token_, token_, 1, nccl::DataType::u8, nccl::Op::maximum, handle,
                                stream);
  }
  return nccl::Result::success;
}

/// Calls `each` per row, in one NCCL group, which NCCL runs as one kernel. `input` and `output` are
/// the elements of a row.
template <class Call>
nccl::Result NcclEngine::in_rows(const comm::Collective& call, size_t input, size_t output,
                                 Call each) {
  const size_t bytes = static_cast<size_t>(call.count) * size_of(call.dtype);
  const auto row = [&](size_t i) {
    return each(static_cast<const char*>(call.input) + i * input * bytes,
                static_cast<char*>(call.output) + i * output * bytes);
  };
  if (call.rows == 1) return row(0);
  const Nccl& library = communicator_->nccl;
  library.group_start();
  for (size_t i = 0; i < static_cast<size_t>(call.rows); ++i) row(i);
  return library.group_end();
}

nccl::Result NcclEngine::all_to_all(const comm::Collective& call, cudaStream_t stream) {
  const Nccl& library = communicator_->nccl;
  nccl::Comm handle = communicator_->comm;
  const auto count = static_cast<size_t>(call.count);
  const size_t bytes = count * size_of(call.dtype);
  const nccl::DataType type = type_of(call.dtype);
  library.group_start();
  for (int peer = 0; peer < size_; ++peer) {
    const size_t at = static_cast<size_t>(peer) * bytes;
    library.send(static_cast<const char*>(call.input) + at, count, type, peer, handle, stream);
    library.receive(static_cast<char*>(call.output) + at, count, type, peer, handle, stream);
  }
  return library.group_end();
}

}  // namespace ds::cuda

ds::comm::Engine* ds_cuda_open_nccl(const ds::comm::Rendezvous& rendezvous, ds::Device& device) {
  return new ds::cuda::NcclEngine(rendezvous, static_cast<ds::cuda::CudaDevice&>(device));
}
