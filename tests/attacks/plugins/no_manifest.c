/* An entry but no manifest; opening it would end the process. */
#include "stub.h"
#include <stdlib.h>
__attribute__((constructor)) static void loud(void) { abort(); }
ENTRY { (void)host; (void)err; return answer(out, device_only); }
