/* The fused op against its formula, through the plugin's own entry, as the host calls it: `make test`. The kit asks far more (op.softmax_fwd.*);
 * this is for a debugger, and a place for what only you know of your kernel. */
#include "crossweave_ops.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CW_EXPORT cw_status crossweave_plugin_v1(const cw_host *given, cw_plugin *out, cw_error *err);
static cw_error error = {.size = sizeof(cw_error)};
#define OK(call) \
  if ((call) != CW_OK) return printf("%s: %s\n", #call, error.message), 1

enum { ROWS = 5, WIDTH = 300, BYTES = ROWS * WIDTH * 4 };

int main(void) {
  cw_host host = {.size = sizeof host, .abi_minor = CW_ABI_MINOR};
  cw_plugin plugin = {.size = sizeof plugin};
  cw_device device;
  cw_stream stream;
  cw_mem x, y, staging;
  void *page;
  OK(crossweave_plugin_v1(&host, &plugin, &error));
  const cw_device_api *d = plugin.get_interface(plugin.self, (cw_str){"crossweave.device/1", 19});
  const cw_ops_api *ops = plugin.get_interface(plugin.self, (cw_str){"crossweave.ops/1", 16});
  OK(d->device_open(plugin.self, 0, &device, &error));
  OK(d->stream_create(device, 0, 0, &stream, &error));
  OK(d->mem_alloc(device, CW_MEM_DEVICE, BYTES, 0, &x, &error));
  OK(d->mem_alloc(device, CW_MEM_DEVICE, BYTES, 0, &y, &error));
  OK(d->mem_alloc(device, CW_MEM_HOST_PINNED, BYTES, 0, &staging, &error));
  OK(d->mem_map(staging, &page, &error));
  float *numbers = page, given[ROWS * WIDTH];
  for (int i = 0; i < ROWS * WIDTH; i++) given[i] = numbers[i] = sinf((float)i) * 20 + (float)(i / WIDTH) * 100;

  cw_layout row = {.size = sizeof row, .dtype = CW_DT_F32, .rank = 2, .flags = CW_LAYOUT_CONTIGUOUS, .shape = {ROWS, WIDTH}, .stride = {WIDTH, 1}};
  const cw_layout operands[2] = {row, row};
  cw_op_desc desc = {.size = sizeof desc, .op = CW_OP_SOFTMAX_FWD, .op_revision = 1, .n_operands = 2, .operands = operands};
  cw_op op;
  cw_op_plan plan = {.size = sizeof plan};
  OK(ops->op_prepare(device, &desc, &op, &plan, &error));
  const cw_span all = {staging, 0, BYTES}, spans[2] = {{y, 0, BYTES}, {x, 0, BYTES}}, none = {0};
  OK(d->copy(stream, spans[1], all, &error));
  OK(ops->op_launch(op, stream, spans, 2, none, NULL, 0, &error));
  OK(d->copy(stream, all, spans[0], &error));
  OK(d->stream_sync(stream, 10000000000, &error));

  int wrong = 0;
  for (int r = 0; r < ROWS; r++) {
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < WIDTH; i++) most = fmax(most, given[r * WIDTH + i]);
    for (int i = 0; i < WIDTH; i++) sum += exp(given[r * WIDTH + i] - most);
    for (int i = 0; i < WIDTH; i++) {
      double want = exp(given[r * WIDTH + i] - most) / sum, got = numbers[r * WIDTH + i];
      if (!(fabs(got - want) <= 1e-6 * want + 1e-37) && !wrong++) printf("row %d, element %d is %g, and %g is right\n", r, i, got, want);
    }
  }
  ops->op_release(op);
  d->mem_free(x), d->mem_free(y), d->mem_free(staging);
  d->stream_destroy(stream);
  d->device_close(device);
  return wrong != 0;
}
