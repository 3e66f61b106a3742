// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/transport/gloo_pulse.h"

namespace dmuon::transport {

// A wait that ticks end, while it lives.
class Pulse::Waiter {
 public:
  Waiter(Pulse* pulse, gloo::transport::UnboundBuffer* buffer, bool incoming)
      : pulse_(pulse), buffer_(buffer), incoming_(incoming) {
    wire::MutexLock lock(pulse_->mu_);
    pulse_->waiters_.insert(this);
    if (pulse_->idle_) pulse_->wake_.NotifyAll();
  }
  ~Waiter() {
    wire::MutexLock lock(pulse_->mu_);
    pulse_->waiters_.erase(this);
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  void End() const { incoming_ ? buffer_->abortWaitRecv() : buffer_->abortWaitSend(); }

 private:
  Pulse* const pulse_;
  gloo::transport::UnboundBuffer* const buffer_;
  const bool incoming_;
};

Pulse::~Pulse() {
  {
    wire::MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
}

bool Pulse::Wait(gloo::transport::UnboundBuffer& buffer, bool incoming) {
  const Waiter waiter(this, &buffer, incoming);
  return incoming ? buffer.waitRecv(nullptr, kForever) : buffer.waitSend(nullptr, kForever);
}

void Pulse::Run() {
  wire::MutexLock lock(mu_);
  while (!stop_) {
    idle_ = waiters_.empty();
    if (idle_) {
      wake_.Wait(mu_);
    } else {
      wake_.WaitUntil(mu_, std::chrono::steady_clock::now() + kTick);
      for (const Waiter* waiter : waiters_) waiter->End();
    }
  }
}

}  // namespace dmuon::transport
