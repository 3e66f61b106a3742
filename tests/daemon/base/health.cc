// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "tests/daemon/base/health.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <vector>

namespace dmuon {
namespace {

// The bytes of a response, one after the other.
std::string Join(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return "";
  std::string out;
  for (const grpc::Slice& slice : slices) {
    out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return out;
}

}  // namespace

Health CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  // Field 1, bytes, in protobuf's wire format.
  const std::string request =
      std::string("\x0a", 1) + static_cast<char>(service.size()) + service;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer message(&slice, 1);

  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", message, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return Health::kNoAnswer;
  // Field 1, an enumerator: 1 is SERVING.
  return Join(response) == "\x08\x01" ? Health::kServing : Health::kNotServing;
}

}  // namespace dmuon
