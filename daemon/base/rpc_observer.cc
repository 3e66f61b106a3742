// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

#include "daemon/base/rpc_observer.h"

#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/metrics.h"
#include "daemon/base/rpc_server.h"
#include "wire/error.h"
#include "wire/grpc_status.h"
#include "wire/mutex.h"

namespace dmuon {
namespace {

using grpc::experimental::InterceptionHookPoints;

std::string CodeName(grpc::StatusCode code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

// One a call; lives as long as the call's context. gRPC makes, calls and destroys it one after the
// other but from different threads, ordered by locks that ThreadSanitizer cannot see; the mutex says
// the same in a way that it can.
class CallObserver final : public grpc::experimental::Interceptor {
 public:
  CallObserver(grpc::experimental::ServerRpcInfo& info, Metrics* metrics)
      : metrics_(metrics), method_(MethodOf(info)), context_(info.server_context()) {
    const wire::MutexLock lock(mu_);
    metrics_->Add(MetricId::kRpcInflight, {method_}, 1);
  }
  ~CallObserver() override {
    const wire::MutexLock lock(mu_);
    End(grpc::StatusCode::CANCELLED);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const wire::MutexLock lock(mu_);
      if (NeedsDeadline() && !HasDeadline(*context_)) {
        methods->ModifySendStatus(wire::ToGrpc(wire::InvalidField(
            method_ + " was called without a deadline; every call needs one")));
      }
      if (methods->GetSendStatus().ok() && LosesAnswer(method_)) {
        methods->ModifySendStatus({grpc::StatusCode::UNAVAILABLE, "a failpoint has lost the answer"});
      }
      End(methods->GetSendStatus().error_code());
    }
    methods->Proceed();
  }

 private:
  static std::string MethodOf(const grpc::experimental::ServerRpcInfo& info) {
    const std::string_view name = info.method();
    return std::string(name.substr(0, 1) == "/" ? name.substr(1) : name);
  }

  [[nodiscard]] bool NeedsDeadline() const {
    return method_.find("grpc.") != 0 && method_ != "unknown";
  }

  void End(grpc::StatusCode code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (std::exchange(ended_, true)) return;
    metrics_->Add(MetricId::kRpcInflight, {method_}, -1);
    metrics_->Observe(MetricId::kRpcServerDuration, {method_, CodeName(code)},
                      absl::ToDoubleSeconds(absl::Now() - start_));
  }

  Metrics* const metrics_;
  const std::string method_;
  grpc::ServerContextBase* const context_;
  const absl::Time start_ = absl::Now();
  wire::Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

class ObserverFactory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit ObserverFactory(Metrics* metrics) : metrics_(metrics) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new CallObserver(*info, metrics_);
  }

 private:
  Metrics* const metrics_;
};

}  // namespace

void AddObserver(grpc::ServerBuilder& builder, Metrics* metrics) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<ObserverFactory>(metrics));
  builder.experimental().SetInterceptorCreators(std::move(factories));
}

}  // namespace dmuon
