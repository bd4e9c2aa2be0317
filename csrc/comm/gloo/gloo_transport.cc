// A transport over Gloo's TCP pairs, with one unbound buffer per message.
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <mutex>
#include <system_error>
#include <vector>

#include "../../core/error.h"
#include "entry.h"
#include "patient_pair.h"

namespace ds::comm {
namespace {

namespace tcp = ::gloo::transport::tcp;

/// The timeout of Gloo's waits, long enough never to pass: the watchdog ends waits by interrupt().
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

[[noreturn]] void fail(const std::string& got) {
  throw Error("DS_COMM", "Gloo", "every rank of the group to exchange data", got,
              "Check the network between the ranks, and the output of the other ranks.");
}

/// Returns Gloo's message without its source location.
std::string reason_in(const std::exception& error) {
  const std::string what = error.what();
  const size_t place = what.rfind("] ");
  return place == std::string::npos ? what : what.substr(place + 2);
}

/// Returns the process's Gloo device. Its one loop thread serves all groups.
std::shared_ptr<tcp::Device> shared_device() {
  static std::mutex mutex;
  // Never destroyed: a thread may open a group while the process ends.
  static auto& known = *new std::weak_ptr<tcp::Device>;
  std::lock_guard lock(mutex);
  std::shared_ptr<tcp::Device> device = known.lock();
  if (!device) {
    tcp::attr where;
    where.hostname = "127.0.0.1";  // sockets listen here until the connections exist
    try {
      device = std::dynamic_pointer_cast<tcp::Device>(tcp::CreateDevice(where));
    } catch (const std::system_error& error) {
      // Gloo itself throws no system_error, so the system has refused the thread.
      throw Error("DS_LIMIT", "newGroup", "a thread that moves data between ranks",
                  text("none: ", error.what()),
                  "Raise the limit on processes and threads (ulimit -u), or the memory limit.");
    }
    known = device;
  }
  return device;
}

/// The pairs of one group.
class Context final : public tcp::Context {
 public:
  Context(int rank, const std::vector<int>& connections)
      : tcp::Context(shared_device(), rank, static_cast<int>(connections.size())) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const auto slot = static_cast<size_t>(peer);
      auto pair = std::make_unique<PatientPair>(this, device_.get(), peer, connections[slot]);
      patient_.push_back(pair.get());
      pairs_[slot] = std::move(pair);
    }
  }
  void await_loop() {
    for (PatientPair* pair : patient_) pair->await_loop();
  }
  void close() {
    for (auto& pair : pairs_) {
      if (pair) pair->close();
    }
  }

 private:
  std::vector<PatientPair*> patient_;  // the pairs, which the base class owns
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(int rank, const std::vector<int>& connections)
      : context_(std::make_shared<Context>(rank, connections)) {}

  void exchange(const std::vector<Transfer>& transfers) override {
    const std::string failure = try_exchange(transfers);
    {
      std::lock_guard lock(mutex_);
      buffers_.clear();
    }
    // After an aborted transfer, the loop thread may still access the caller's memory.
    if (interrupted_.load() || !failure.empty()) context_->await_loop();
    if (interrupted_.load()) {
      context_->close();  // otherwise Gloo's loop would wait for messages without a receiver
      fail("an interrupted collective");
    }
    if (!failure.empty()) fail(failure);
  }

  void interrupt() noexcept override {
    std::lock_guard lock(mutex_);
    interrupted_.store(true);
    for (const auto& buffer : buffers_) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }

 private:
  /// Runs the transfers. Returns the reason of a failure, or "" after success or an interrupt. It
  /// posts receives first, so that arriving data has a destination.
  std::string try_exchange(const std::vector<Transfer>& transfers) {
    size_t at = 0;
    try {
      if (!make_buffers(transfers)) return "";
      for (at = 0; at < transfers.size(); ++at) {
        const Transfer& t = transfers[at];
        if (!t.sending) buffers_[at]->recv(t.peer, t.tag);
      }
      for (at = 0; at < transfers.size(); ++at) {
        const Transfer& t = transfers[at];
        if (t.sending) buffers_[at]->send(t.peer, t.tag);
      }
      for (at = 0; at < transfers.size(); ++at) {
        const bool complete = transfers[at].sending ? buffers_[at]->waitSend(kForever)
                                                    : buffers_[at]->waitRecv(kForever);
        if (!complete) break;  // interrupted
      }
      return "";
    } catch (const std::exception& error) {
      return text("the connection to rank ", transfers[at].peer, " of the group closed (",
                  reason_in(error), ')');
    }
  }

  bool make_buffers(const std::vector<Transfer>& transfers) {
    std::lock_guard lock(mutex_);
    if (interrupted_.load()) return false;
    for (const Transfer& t : transfers) {
      buffers_.push_back(context_->createUnboundBuffer(t.data, t.bytes));
    }
    return true;
  }

  const std::shared_ptr<Context> context_;
  std::mutex mutex_;  // guards buffers_, which interrupt() uses on another thread
  std::vector<std::unique_ptr<::gloo::transport::UnboundBuffer>> buffers_;
  std::atomic<bool> interrupted_{false};
};

}  // namespace
}  // namespace ds::comm

int ds_gloo_interface() { return ds::comm::kGlooInterface; }

ds::comm::Transport* ds_gloo_open(int rank, const std::vector<int>& connections) {
  try {
    return new ds::comm::GlooTransport(rank, connections);
  } catch (const ds::Error&) {
    throw;
  } catch (const std::exception& error) {
    ds::comm::fail(error.what());
  }
}
