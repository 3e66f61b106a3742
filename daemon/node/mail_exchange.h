// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// A mail on its way: all that comes in is received from the beginning, what goes out is sent bucket
// by bucket as soon as it is packed. Both directions of a bucket share a tag, so the ends may start
// them in any order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/node/messages.h"
#include "daemon/transport/transport.h"
#include "wire/mutex.h"

namespace dmuon::node {

class MailExchange {
 public:
  // Takes `buckets` tags from `first_tag` on. `transport` and `mail` outlive it; null is a transport
  // that is not connected.
  MailExchange(transport::Transport* transport, Mail& mail, uint32_t buckets, uint64_t first_tag);

  // From now on messages are waited for, until `deadline`. Once, before Receive and Close, and while no
  // other thread is here.
  void Expect(absl::Time deadline);
  // All messages of `bucket` that go out are packed. Any thread, at most once a bucket. Errors are
  // kept for Close.
  void Send(uint32_t bucket);
  // Blocks until all messages of `bucket` that come in are there. Any thread.
  absl::Status Receive(uint32_t bucket);
  void SendRest();
  // Sends the rest and waits for everything; the first error. When no other thread uses the exchange
  // any more.
  absl::Status Close();

  struct Arrival {
    Cargo cargo;
    double seconds;  // from Expect until the bucket was there and taken up
  };
  // After Close: of every bucket that came in.
  [[nodiscard]] const std::vector<Arrival>& arrivals() const { return arrivals_; }

 private:
  // One direction of a bucket.
  struct Way {
    wire::Mutex mu;  // held while it is waited for
    transport::Batch batch ABSL_GUARDED_BY(mu);  // not yet started
    std::unique_ptr<transport::Exchange> exchange ABSL_GUARDED_BY(mu);  // in flight
    absl::Status status ABSL_GUARDED_BY(mu);
    absl::Time finished ABSL_GUARDED_BY(mu) = absl::InfinitePast();  // when `exchange` was
  };
  struct Bucket {
    Way in;
    Way out;
  };

  void Start(Way& way);
  absl::Status Finish(Way& way);
  void NoteArrival(Way& way);

  transport::Transport* const transport_;
  const Cargo cargo_;
  absl::Time expected_ = absl::InfinitePast();  // when Expect came
  absl::Time deadline_ = absl::InfinitePast();
  std::vector<Bucket> buckets_;
  std::vector<Arrival> arrivals_;
};

}  // namespace dmuon::node
