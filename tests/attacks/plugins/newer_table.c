/* A plugin of a later minor: its table is longer than the host's. It must load, the unknown slots ignored. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
static struct { cw_device_api known; void *later[8]; } table;
static const void *get(void *self, cw_str id) { (void)self; return is(id, "crossweave.device/1") ? &table : NULL; }
ENTRY {
  (void)host; (void)err;
  table.known = device;
  table.known.size = sizeof table;
  memset(table.later, 0xEE, sizeof table.later);
  cw_status s = answer(out, get);
  out->abi_minor = 5;
  return s;
}
