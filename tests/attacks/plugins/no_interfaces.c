/* Provides nothing. */
#include "stub.h"
CW_MANIFEST("name=stub;vendor=Attack");
static const void *get(void *self, cw_str id) { (void)self; (void)id; return NULL; }
ENTRY { (void)host; (void)err; unused(); return answer(out, get); }
