/* The device is whole, the ops table is empty. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
static const cw_ops_api ops = {.size = sizeof(cw_ops_api)};
static const void *get(void *self, cw_str id) { return is(id, "crossweave.ops/1") ? &ops : device_only(self, id); }
ENTRY { (void)host; (void)err; return answer(out, get); }
