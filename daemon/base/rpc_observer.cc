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

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/base/metrics.h"
#include "daemon/base/rpc_server.h"
#include "wire/error.h"
#include "wire/grpc_status.h"

namespace dmuon {
namespace {

using grpc::experimental::InterceptionHookPoints;

std::string CodeName(grpc::StatusCode code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

// One a call; lives as long as the call's context.
class CallObserver : public grpc::experimental::Interceptor {
 public:
  CallObserver(grpc::experimental::ServerRpcInfo& info, Metrics* metrics)
      : metrics_(metrics), method_(MethodOf(info)), context_(info.server_context()) {
    metrics_->Add(MetricId::kRpcInflight, {method_}, 1);
  }
  ~CallObserver() override { End(grpc::StatusCode::CANCELLED); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      if (NeedsDeadline() && !HasDeadline(*context_)) {
        methods->ModifySendStatus(wire::ToGrpc(wire::InvalidField(
            method_ + " was called without a deadline; every call needs one")));
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

  void End(grpc::StatusCode code) {
    if (std::exchange(ended_, true)) return;
    metrics_->Add(MetricId::kRpcInflight, {method_}, -1);
    metrics_->Observe(MetricId::kRpcServerDuration, {method_, CodeName(code)},
                      absl::ToDoubleSeconds(absl::Now() - start_));
  }

  Metrics* const metrics_;
  const std::string method_;
  grpc::ServerContextBase* const context_;
  const absl::Time start_ = absl::Now();
  bool ended_ = false;  // the interceptor's calls come one after the other
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
