/* The C example with one defect of a kind that only its raw tables can have: arrays and structs of the host read when the stream comes to them, and
 * not before the call returns (R8). Chosen by -DLATE_x; built with the example's sources, whose entry is called `inner` here. */
#include "plugin.h"
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>

CW_EXPORT cw_status crossweave_plugin_v1(const cw_host *given, cw_plugin *out, cw_error *err);
cw_status inner(const cw_host *given, cw_plugin *out, cw_error *err);

static const cw_device_api *device;
static cw_device beside; /* its streams do what comes late */

/* What the host has said, by its own addresses where that is the defect. */
struct said {
  cw_op op;
  const cw_span *operands;
  uint32_t n;
  cw_span workspace;
  const void *dyn;
  uint64_t dyn_bytes;
};
static cw_status come(struct command *c, cw_status status) {
  struct said *x = c->arg;
  cw_stream s;
#if defined LATE_OPERANDS || defined LATE_LAUNCH_STRUCTS
  thrd_sleep(&(struct timespec){.tv_nsec = 5000000}, NULL); /* late also where this thread is given a core before the caller */
#endif
  if (!status) status = device->stream_create(beside, 0, 0, &s, NULL);
  if (!status) {
    status = ops_table.op_launch(x->op, s, x->operands, x->n, x->workspace, x->dyn, x->dyn_bytes, NULL);
    if (!status) status = device->stream_sync(s, -1, NULL);
    device->stream_destroy(s);
  }
  free(x);
  return status;
}
static const void *kept(const void *from, uint64_t bytes) { /* as it should be; never freed */
  void *to = bytes ? malloc(bytes) : NULL;
  if (to) memcpy(to, from, bytes);
  return to;
}
static cw_status op_launch(cw_op op, cw_stream s, const cw_span *operands, uint32_t n, cw_span workspace, const void *dyn, uint64_t bytes, cw_error *err) {
  struct said *x = malloc(sizeof *x);
  NEED(x, CW_E_OOM, "no host memory");
  *x = (struct said){op, operands, n, workspace, dyn, bytes};
#ifndef LATE_OPERANDS
  x->operands = kept(operands, n * sizeof *operands);
#endif
#ifndef LATE_LAUNCH_STRUCTS
  x->dyn = kept(dyn, bytes);
#endif
  return enqueue(s, (struct command){.run = come, .arg = x}, __func__, err);
}
static void op_release(cw_op op) { (void)op; /* launches may still come to it */ }
static const cw_ops_api late_table = {.size = sizeof late_table, .op_launch = op_launch, .op_release = op_release};
static cw_ops_api table;

static const void *(*ask)(void *self, cw_str id);
static const void *get_interface(void *self, cw_str id) {
  const void *found = ask(self, id);
  if (found != &ops_table) return found;
  table = late_table;
  table.op_prepare = ops_table.op_prepare;
  return &table;
}
cw_status crossweave_plugin_v1(const cw_host *given, cw_plugin *out, cw_error *err) {
  TRY(inner(given, out, err));
  ask = out->get_interface;
  out->get_interface = get_interface;
  device = ask(out->self, (cw_str){"crossweave.device/1", 19});
  return beside ? CW_OK : device->device_open(out->self, 0, &beside, err);
}
