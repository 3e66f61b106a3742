// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// The exported functions. Nothing but translation happens here; no exception leaves this file.

#include <unistd.h>

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/include/dmuon/dmuon.h"
#include "client/src/client.h"
#include "client/src/convert.h"
#include "wire/error.h"

struct dmuon_client {
  pid_t owner;  // the process that opened it; a forked child is another
  std::unique_ptr<dmuon::client::Client> impl;
};

namespace dmuon::client {
namespace {

std::string& LastError() {
  thread_local std::string message;
  return message;
}

// Runs `call` (returning absl::Status) and turns what comes out of it into a code and a message.
template <typename Call>
dmuon_status_t Guarded(Call&& call) {
  try {
    const absl::Status status = call();
    if (status.ok()) return DMUON_OK;
    LastError() = std::string(status.message());
    return CodeOf(status);
  } catch (const std::bad_alloc&) {
    LastError().clear();  // a message would need memory
    return DMUON_LIMIT;
  } catch (const std::exception& e) {
    LastError() = e.what();
    return DMUON_INTERNAL;
  }
}

absl::Status NotNull(const void* pointer, absl::string_view name) {
  return pointer != nullptr ? absl::OkStatus() : wire::InvalidField(absl::StrCat(name, " is NULL"));
}

// After a fork the child has the memory of the client but none of its threads.
absl::Status CheckOwner(const dmuon_client* client) {
  DMUON_RETURN_IF_ERROR(NotNull(client, "client"));
  if (client->owner == getpid()) return absl::OkStatus();
  return wire::Error(absl::StatusCode::kFailedPrecondition, v1::ERROR_REASON_NOT_READY,
                     absl::StrCat("client belongs to process ", client->owner, "; process ",
                                  getpid(), " was forked from it and must open its own"));
}

Timeout ToTimeout(int32_t timeout_ms) {
  return timeout_ms < 0 ? Timeout() : Timeout(std::chrono::milliseconds(timeout_ms));
}

absl::Status Submit(dmuon_client* client, const uint32_t* tensors, size_t count, uint64_t step,
                    wire::WordState state) {
  DMUON_RETURN_IF_ERROR(CheckOwner(client));
  if (count > 0) DMUON_RETURN_IF_ERROR(NotNull(tensors, "tensors"));
  return client->impl->Submit(std::span(tensors, count), step, state);
}

absl::Status Buffer(absl::StatusOr<std::span<std::byte>> piece, void** data, size_t* bytes) {
  if (!piece.ok()) return piece.status();
  *data = piece->data();
  *bytes = piece->size();
  return absl::OkStatus();
}

void Fill(const v1::RegisterResponse& from, dmuon_plan_info* to) {
  to->generation = from.generation();
  to->matrix_units = from.matrix_units();
  to->elementwise_units = from.elementwise_units();
  to->arena_bytes = from.arena_bytes();
  to->nodes = from.nodes();
  to->first_rank = from.first_rank();
}

void Fill(const v1::StepResponse& from, dmuon_step_result* to) {
  to->step = from.step();
  to->skipped = from.skipped() ? 1 : 0;
  to->replayed = from.replayed() ? 1 : 0;
  to->grad_norm = from.grad_norm();
  to->clip = from.clip();
  to->newton_schulz_calls = from.newton_schulz_calls();
  to->service_seconds = from.service_seconds();
}

}  // namespace
}  // namespace dmuon::client

using dmuon::client::Guarded;
namespace impl = dmuon::client;

const char* dmuon_version(void) { return DMUON_VERSION; }

int32_t dmuon_abi_version(void) { return DMUON_ABI_VERSION; }

const char* dmuon_status_name(int32_t status) { return impl::NameOf(status); }

const char* dmuon_last_error(void) { return impl::LastError().c_str(); }

dmuon_status_t dmuon_open(const dmuon_config* config, dmuon_client** client) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::NotNull(config, "config"));
    DMUON_RETURN_IF_ERROR(impl::NotNull(client, "client"));
    DMUON_ASSIGN_OR_RETURN(impl::OpenArguments arguments, impl::FromC(*config));
    auto handle = std::make_unique<dmuon_client>();
    handle->owner = getpid();
    DMUON_ASSIGN_OR_RETURN(
        handle->impl, impl::Client::Open(std::move(arguments.endpoint), std::move(arguments.job)));
    *client = handle.release();
    return absl::OkStatus();
  });
}

dmuon_status_t dmuon_add_group(dmuon_client* client, const dmuon_group* group, uint32_t* index) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    DMUON_RETURN_IF_ERROR(impl::NotNull(group, "group"));
    DMUON_RETURN_IF_ERROR(impl::NotNull(index, "index"));
    DMUON_ASSIGN_OR_RETURN(dmuon::v1::Group parsed, impl::FromC(*group));
    DMUON_ASSIGN_OR_RETURN(*index, client->impl->AddGroup(std::move(parsed)));
    return absl::OkStatus();
  });
}

dmuon_status_t dmuon_add_tensor(dmuon_client* client, const dmuon_tensor* tensor, uint32_t* index) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    DMUON_RETURN_IF_ERROR(impl::NotNull(tensor, "tensor"));
    DMUON_RETURN_IF_ERROR(impl::NotNull(index, "index"));
    DMUON_ASSIGN_OR_RETURN(impl::TensorArguments parsed, impl::FromC(*tensor));
    DMUON_ASSIGN_OR_RETURN(
        *index, client->impl->AddTensor(std::move(parsed.tensor), std::move(parsed.shard)));
    return absl::OkStatus();
  });
}

dmuon_status_t dmuon_register(dmuon_client* client, int32_t timeout_ms, dmuon_plan_info* info) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    if (info != nullptr) {
      DMUON_RETURN_IF_ERROR(
          impl::CheckStructSize(info->struct_size, sizeof(*info), "dmuon_plan_info"));
    }
    DMUON_ASSIGN_OR_RETURN(const auto plan, client->impl->Register(impl::ToTimeout(timeout_ms)));
    if (info != nullptr) impl::Fill(plan, info);
    return absl::OkStatus();
  });
}

dmuon_status_t dmuon_grad_buffer(dmuon_client* client, uint32_t tensor, void** data,
                                 size_t* bytes) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    DMUON_RETURN_IF_ERROR(impl::NotNull(data, "data"));
    DMUON_RETURN_IF_ERROR(impl::NotNull(bytes, "bytes"));
    return impl::Buffer(client->impl->Gradient(tensor), data, bytes);
  });
}

dmuon_status_t dmuon_param_buffer(dmuon_client* client, uint32_t tensor, void** data,
                                  size_t* bytes) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    DMUON_RETURN_IF_ERROR(impl::NotNull(data, "data"));
    DMUON_RETURN_IF_ERROR(impl::NotNull(bytes, "bytes"));
    return impl::Buffer(client->impl->Parameter(tensor), data, bytes);
  });
}

dmuon_status_t dmuon_begin(dmuon_client* client, int32_t timeout_ms, uint64_t* last_step,
                           int32_t* resumed) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    DMUON_RETURN_IF_ERROR(impl::NotNull(last_step, "last_step"));
    DMUON_RETURN_IF_ERROR(impl::NotNull(resumed, "resumed"));
    DMUON_ASSIGN_OR_RETURN(const auto begun, client->impl->Begin(impl::ToTimeout(timeout_ms)));
    *last_step = begun.last_step();
    *resumed = begun.resumed() ? 1 : 0;
    return absl::OkStatus();
  });
}

dmuon_status_t dmuon_submit(dmuon_client* client, const uint32_t* tensors, size_t count,
                            uint64_t step) {
  return Guarded([&] {
    return impl::Submit(client, tensors, count, step, dmuon::wire::WordState::kReady);
  });
}

dmuon_status_t dmuon_submit_missing(dmuon_client* client, const uint32_t* tensors, size_t count,
                                    uint64_t step) {
  return Guarded([&] {
    return impl::Submit(client, tensors, count, step, dmuon::wire::WordState::kMissing);
  });
}

dmuon_status_t dmuon_expect_gradients(dmuon_client* client, uint64_t step) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    return client->impl->ExpectGradients(step);
  });
}

dmuon_status_t dmuon_multiply_rows(dmuon_client* client, uint32_t tensor, int64_t first_row, int64_t rows_each,
                                   const double* factors, size_t count) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    if (count > 0) DMUON_RETURN_IF_ERROR(impl::NotNull(factors, "factors"));
    dmuon::v1::RowFactors rows;
    rows.set_tensor(tensor);
    rows.set_first_row(first_row);
    rows.set_rows_each(rows_each);
    rows.mutable_factors()->Add(factors, factors + count);
    return client->impl->MultiplyRows(std::move(rows));
  });
}

dmuon_status_t dmuon_step(dmuon_client* client, uint64_t step, const dmuon_hyper* hypers,
                          size_t count) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    if (count > 0) DMUON_RETURN_IF_ERROR(impl::NotNull(hypers, "hypers"));
    return client->impl->Step(step, impl::FromC(std::span(hypers, count)));
  });
}

dmuon_status_t dmuon_wait(dmuon_client* client, uint64_t step, int32_t timeout_ms,
                          dmuon_step_result* result) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    if (result != nullptr) {
      DMUON_RETURN_IF_ERROR(
          impl::CheckStructSize(result->struct_size, sizeof(*result), "dmuon_step_result"));
    }
    DMUON_ASSIGN_OR_RETURN(const auto answer,
                           client->impl->Wait(step, impl::ToTimeout(timeout_ms)));
    if (result != nullptr) impl::Fill(answer, result);
    return absl::OkStatus();
  });
}

dmuon_status_t dmuon_wait_params(dmuon_client* client, const uint32_t* tensors, size_t count,
                                 uint64_t step, int32_t timeout_ms) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    if (count > 0) DMUON_RETURN_IF_ERROR(impl::NotNull(tensors, "tensors"));
    return client->impl->WaitParameters(std::span(tensors, count), step,
                                        impl::ToTimeout(timeout_ms));
  });
}

dmuon_status_t dmuon_save(dmuon_client* client, const char* name, int32_t timeout_ms) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    DMUON_RETURN_IF_ERROR(impl::NotNull(name, "name"));
    return client->impl->Save(name, impl::ToTimeout(timeout_ms));
  });
}

dmuon_status_t dmuon_wait_saved(dmuon_client* client, const char* name, int32_t timeout_ms) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    DMUON_RETURN_IF_ERROR(impl::NotNull(name, "name"));
    return client->impl->WaitSaved(name, impl::ToTimeout(timeout_ms));
  });
}

dmuon_status_t dmuon_restore(dmuon_client* client, const char* name, int32_t timeout_ms, uint64_t* last_step) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    DMUON_RETURN_IF_ERROR(impl::NotNull(name, "name"));
    DMUON_RETURN_IF_ERROR(impl::NotNull(last_step, "last_step"));
    DMUON_ASSIGN_OR_RETURN(*last_step, client->impl->Restore(name, impl::ToTimeout(timeout_ms)));
    return absl::OkStatus();
  });
}

dmuon_status_t dmuon_export_state(dmuon_client* client, int32_t timeout_ms, const void** data, size_t* bytes) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    DMUON_RETURN_IF_ERROR(impl::NotNull(data, "data"));
    DMUON_RETURN_IF_ERROR(impl::NotNull(bytes, "bytes"));
    DMUON_ASSIGN_OR_RETURN(const std::span<const std::byte> state, client->impl->Export(impl::ToTimeout(timeout_ms)));
    *data = state.data();
    *bytes = state.size();
    return absl::OkStatus();
  });
}

dmuon_status_t dmuon_release_state(dmuon_client* client) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    return client->impl->ReleaseState();
  });
}

dmuon_status_t dmuon_import_state(dmuon_client* client, int32_t fd, const char* digest, int32_t timeout_ms,
                                  uint64_t* last_step) {
  return Guarded([&]() -> absl::Status {
    DMUON_RETURN_IF_ERROR(impl::CheckOwner(client));
    DMUON_RETURN_IF_ERROR(impl::NotNull(digest, "digest"));
    DMUON_RETURN_IF_ERROR(impl::NotNull(last_step, "last_step"));
    DMUON_ASSIGN_OR_RETURN(*last_step, client->impl->Import(fd, digest, impl::ToTimeout(timeout_ms)));
    return absl::OkStatus();
  });
}

void dmuon_close(dmuon_client* client) {
  if (client == nullptr) return;
  Guarded([&]() -> absl::Status {
    // In a forked child the threads to join do not exist: its copy is kept, not destroyed.
    if (client->owner != getpid()) {
      static auto* kept = new std::vector<dmuon_client*>;  // reachable, so no leak
      kept->push_back(client);
    } else {
      delete client;
    }
    return absl::OkStatus();
  });
}
