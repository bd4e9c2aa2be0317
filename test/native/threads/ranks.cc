// Joining, starting and ending ranks on threads.
#include "ranks.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <stdexcept>
#include <thread>

namespace ds::threads {
namespace {

/// Streams that run at once; the groups need no more of a device.
class HostDevice final : public Device {
 public:
  DeviceInfo info() const override { return {"host", "", 0}; }
  void* allocate(size_t, Stream&) override { refuse(); }
  void release(void*, size_t, Stream&) override { refuse(); }
  void* allocate_pinned(size_t) override { refuse(); }
  void release_pinned(void*, size_t) override { refuse(); }
  MemoryStats memory() const override { return {}; }
  void reset_peaks() override {}
  void set_cap(size_t) override {}
  void trim() override {}
  std::unique_ptr<Stream> create_stream(Urgency) override { return std::make_unique<Stream>(); }
  std::unique_ptr<Event> create_event(bool) override { return std::make_unique<Event>(); }
  Stream& compute_stream() override { return stream_; }
  void record(Event&, Stream&) override {}
  void wait(Stream&, Event&) override {}
  bool done(Event&) override { return true; }
  void synchronize(Event&) override {}
  void synchronize(Stream&) override {}
  void synchronize_all() override {}
  double elapsed_ms(Event&, Event&) override { return 0; }
  void copy(void*, const void*, size_t, Stream&) override { refuse(); }
  void launch_host(Stream&, std::function<void()>) override { refuse(); }
  void run(OpId, const void*, Stream&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("not a call of a process group"); }
  Stream stream_;
};

Device& host_device() {
  static auto* device = new HostDevice();
  return *device;
}

comm::ProcessGroup::Members everyone(int rank, int size) {
  comm::ProcessGroup::Members members{"world", {}, rank};
  for (int i = 0; i < size; ++i) members.ranks.push_back(i);
  return members;
}

}  // namespace

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

Floats floats(int64_t count, float value) {
  const auto poison = [](std::vector<float>* data) {
    std::fill(data->begin(), data->end(), std::numeric_limits<float>::quiet_NaN());
    delete data;
  };
  return Floats(new std::vector<float>(static_cast<size_t>(count), value), poison);
}

Rank::Rank(const comm::StoreAddress& store, int rank, int size, comm::Milliseconds timeout)
    : job_({store, rank, size, timeout}, [this](const Error&) { ++heard_; }, cancellation_) {
  group_ = job_.open_group(everyone(rank, size), host_device(), [](const comm::Rendezvous& at) {
    return std::make_shared<comm::CpuEngine>(at.rank, at.size, comm::open_gloo(at));
  });
}

Rank::~Rank() { cancellation_->cancel(); }

uint64_t Rank::start(comm::Kind kind, Floats input, Floats output, int64_t count,
                     const std::string& label) {
  comm::Collective call;
  call.kind = kind;
  call.input = input ? input->data() : nullptr;
  call.output = output ? output->data() : nullptr;
  call.count = count;
  comm::Memory memory{std::move(input), std::move(output)};
  return group_->start(call, host_device().compute_stream(), label, std::move(memory));
}

void Rank::all_reduce(Floats data, const std::string& label) {
  const auto count = static_cast<int64_t>(data->size());
  group_->synchronize(start(comm::Kind::all_reduce, data, data, count, label));
}

Store open_store() {
  Store out;
  const std::string secret = comm::random_bytes(16);
  out.server = std::make_unique<comm::StoreServer>("127.0.0.1", 0, secret);
  out.address = {"127.0.0.1", out.server->port(), secret};
  return out;
}

void on_ranks(const Store& store, int count, comm::Milliseconds timeout,
              const std::function<void(Rank&, int)>& body) {
  std::vector<std::exception_ptr> failures(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Rank self(store.address, rank, count, timeout);
        body(self, rank);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    require(error.code == "DS_COMM", text("DS_COMM expected, got ", error.code.name()));
    return error.what();
  }
  throw std::runtime_error("a failure was expected, none came");
}

}  // namespace ds::threads
