/* What the files of this plugin share. device.c knows memory, streams and events; ops.c knows arithmetic; collectives.c knows ranks. To port
 * this to a chip, memory and streams become the driver's and each `run` of ops.c a kernel; what is checked, and what is answered, stays. */
#ifndef SOFTDEV_PLUGIN_H
#define SOFTDEV_PLUGIN_H
#include "crossweave_ops.h"
#include <stdbool.h>

#define NAME "softdev" /* of the plugin, of its configuration keys and fault points */
/* Unless `cond` holds: the error, and out of the function, whose record is `err`. */
#define NEED(cond, code, ...) \
  if (!(cond)) return fail(err, code, __func__, __VA_ARGS__)
/* Out of the function with whatever is not CW_OK. */
#define TRY(call) \
  for (cw_status s_ = (call); s_;) return s_

/* A command in a stream's queue. `run` gets the stream's status so far and answers the status from now on; when it gets a failure there is
 * nothing left to do but to give back what the command holds. */
struct command {
  cw_status (*run)(struct command *self, cw_status status);
  void *arg;
  void (*fn)(void *arg, cw_status status); /* host calls */
  char *dst;                               /* transfers: rows of a copy; or, without src, one row of a pattern of spitch bytes */
  const char *src;
  uint64_t dpitch, spitch, width, height, pattern;
  struct command *next; /* this and the next are the queue's */
  cw_stream stream;
};
/* Appends a copy of `c` to the stream. A stream's failure is sticky, the answer to every later call; when nothing can be appended, `run` is
 * called at once with the failure. */
cw_status enqueue(cw_stream s, struct command c, const char *where, cw_error *err);
/* Writes the caller's record, as much of it as the caller owns, and answers `code`. */
cw_status fail(cw_error *err, cw_status code, const char *where, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* CW_OK, unless the conformance kit wants this place to fail now. */
cw_status fault(const char *place, cw_error *err);
/* The address of a span that lies inside its memory, else NULL. */
char *address(cw_span s);
/* R1: reads a size-prefixed struct of the host out of `room` bytes (none at all: zeros), with zeros where it is shorter than `known`.
 * UNSUPPORTED when it is longer and its tail is not zero: the host means something that this plugin has never heard of. */
cw_status read_struct(void *to, size_t known, const void *from, uint64_t room, cw_error *err);
/* R1: fills a size-prefixed struct of the host, no further than the size in it. */
cw_status write_struct(void *to, const void *from, size_t known, cw_error *err);
/* Nanoseconds of the clock that condition variables wait by. */
uint64_t now_ns(void);
/* Is the stream being destroyed, for a second already? What still waits in it for others then ends. */
bool given_up(cw_stream s);
extern const cw_ops_api ops_table;
extern const cw_collective_api collective_table;
#endif
