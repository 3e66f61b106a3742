/* SPDX-FileCopyrightText: 2026 The dmuon authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI from C, without a daemon: everything that must be refused before a byte is sent, and
 * that no argument, however wrong, ends the process.
 */
#include <dmuon/dmuon.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

#define EXPECT(condition)                                                              \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "%s:%d: %s\n  last error: %s\n", __FILE__, __LINE__, #condition, \
              dmuon_last_error());                                                     \
      ++failures;                                                                      \
    }                                                                                  \
  } while (0)

#define EXPECT_REFUSED(call, word)                    \
  do {                                                \
    EXPECT((call) == DMUON_INVALID_ARGUMENT);         \
    EXPECT(strstr(dmuon_last_error(), word) != NULL); \
  } while (0)

static dmuon_config MakeConfig(void) {
  dmuon_config config = DMUON_CONFIG_INIT;
  config.address = "unix:/nonexistent/dmuond.sock";
  config.job_id = "job";
  config.connect_timeout_ms = 0;
  return config;
}

static void VersionsAgreeWithTheHeader(void) {
  EXPECT(dmuon_abi_version() == DMUON_ABI_VERSION);
  EXPECT(strlen(dmuon_version()) >= strlen("0.0.0"));
  EXPECT(strchr(dmuon_version(), '.') != NULL);
}

static void EveryStatusHasItsName(void) {
  EXPECT(strcmp(dmuon_status_name(DMUON_OK), "DMUON_OK") == 0);
  EXPECT(strcmp(dmuon_status_name(DMUON_COVERAGE), "DMUON_COVERAGE") == 0);
  EXPECT(strcmp(dmuon_status_name(DMUON_STEP_OUT_OF_ORDER), "DMUON_STEP_OUT_OF_ORDER") == 0);
  EXPECT(strcmp(dmuon_status_name(DMUON_STATE_LOST), "DMUON_STATE_LOST") == 0);
  EXPECT(strcmp(dmuon_status_name(DMUON_REATTACHED), "DMUON_REATTACHED") == 0);
  EXPECT(strcmp(dmuon_status_name(DMUON_CHECKPOINT), "DMUON_CHECKPOINT") == 0);
  EXPECT(strcmp(dmuon_status_name(-1), dmuon_status_name(DMUON_ROLLED_BACK + 1)) == 0);
  EXPECT(strcmp(dmuon_status_name(2147483647), "DMUON_UNKNOWN_STATUS") == 0);
}

static void NullsAreRefusedByName(void) {
  dmuon_client* client = NULL;
  dmuon_config config = MakeConfig();
  void* data = NULL;
  size_t bytes = 0;
  uint64_t last_step = 0;
  const void* state = NULL;
  size_t state_bytes = 0;
  int32_t resumed = 0;
  dmuon_group group = DMUON_GROUP_INIT;
  dmuon_tensor tensor = DMUON_TENSOR_INIT;
  uint32_t index = 0;
  EXPECT_REFUSED(dmuon_open(NULL, &client), "config");
  EXPECT_REFUSED(dmuon_open(&config, NULL), "client");
  EXPECT_REFUSED(dmuon_add_group(NULL, &group, &index), "client");
  EXPECT_REFUSED(dmuon_add_tensor(NULL, &tensor, &index), "client");
  EXPECT_REFUSED(dmuon_register(NULL, 0, NULL), "client");
  EXPECT_REFUSED(dmuon_grad_buffer(NULL, 0, &data, &bytes), "client");
  EXPECT_REFUSED(dmuon_param_buffer(NULL, 0, &data, &bytes), "client");
  EXPECT_REFUSED(dmuon_begin(NULL, 0, &last_step, &resumed), "client");
  EXPECT_REFUSED(dmuon_submit(NULL, &index, 1, 1), "client");
  EXPECT_REFUSED(dmuon_submit_missing(NULL, &index, 1, 1), "client");
  EXPECT_REFUSED(dmuon_step(NULL, 1, NULL, 0), "client");
  EXPECT_REFUSED(dmuon_multiply_rows(NULL, 0, 0, 1, NULL, 0), "client");
  EXPECT_REFUSED(dmuon_wait(NULL, 1, 0, NULL), "client");
  EXPECT_REFUSED(dmuon_wait_params(NULL, &index, 1, 1, 0), "client");
  EXPECT_REFUSED(dmuon_save(NULL, "name", 0), "client");
  EXPECT_REFUSED(dmuon_wait_saved(NULL, "name", 0), "client");
  EXPECT_REFUSED(dmuon_restore(NULL, "name", 0, &last_step), "client");
  EXPECT_REFUSED(dmuon_export_state(NULL, 0, &state, &state_bytes), "client");
  EXPECT_REFUSED(dmuon_release_state(NULL), "client");
  EXPECT_REFUSED(dmuon_import_state(NULL, -1, "", 0, &last_step), "client");
  dmuon_close(NULL);
}

static void BadConfigsAreRefusedByField(void) {
  dmuon_client* client = NULL;
  dmuon_config config = MakeConfig();
  config.struct_size = sizeof(config) - 1;
  EXPECT_REFUSED(dmuon_open(&config, &client), "dmuon_config.struct_size");
  config = MakeConfig();
  config.struct_size = sizeof(config) + 8;
  EXPECT_REFUSED(dmuon_open(&config, &client), "dmuon_config.struct_size");
  config = MakeConfig();
  config.job_id = NULL;
  EXPECT_REFUSED(dmuon_open(&config, &client), "job_id");
  config.job_id = "no spaces";
  EXPECT_REFUSED(dmuon_open(&config, &client), "job_id");
  config = MakeConfig();
  config.rank = 1;
  EXPECT_REFUSED(dmuon_open(&config, &client), "rank 1");
  config = MakeConfig();
  config.world_size = 0;
  EXPECT_REFUSED(dmuon_open(&config, &client), "world_size 0");
  config = MakeConfig();
  config.max_grad_norm = -1.0;
  EXPECT_REFUSED(dmuon_open(&config, &client), "max_grad_norm -1");
  config = MakeConfig();
  memset(&config.missing_gradient, 0x7f, sizeof(config.missing_gradient));
  EXPECT_REFUSED(dmuon_open(&config, &client), "missing_gradient");
  config = MakeConfig();
  config.call_timeout_ms = 0;
  EXPECT_REFUSED(dmuon_open(&config, &client), "call_timeout");
  config = MakeConfig();
  config.checkpoint_every_seconds = -0.5;
  EXPECT_REFUSED(dmuon_open(&config, &client), "every_seconds is -0.5");
  config = MakeConfig();
  config.checkpoint_every_steps = 100;
  config.checkpoint_keep = 0;
  EXPECT_REFUSED(dmuon_open(&config, &client), "keep is 0, allowed are 1..1000");
  config.checkpoint_keep = 1001;
  EXPECT_REFUSED(dmuon_open(&config, &client), "keep is 1001");
  config = MakeConfig();
  config.address = "localhost:50051";
  EXPECT_REFUSED(dmuon_open(&config, &client), "localhost:50051");
  EXPECT(client == NULL);
}

static void AnAddressWithoutADaemonIsNamed(void) {
  dmuon_client* client = NULL;
  dmuon_config config = MakeConfig();
  EXPECT(dmuon_open(&config, &client) == DMUON_UNAVAILABLE);
  EXPECT(strstr(dmuon_last_error(), "unix:/nonexistent/dmuond.sock") != NULL);
  EXPECT(client == NULL);
}

int main(void) {
  VersionsAgreeWithTheHeader();
  EveryStatusHasItsName();
  NullsAreRefusedByName();
  BadConfigsAreRefusedByField();
  AnAddressWithoutADaemonIsNamed();
  if (failures != 0) fprintf(stderr, "%d expectations failed\n", failures);
  return failures == 0 ? 0 : 1;
}
