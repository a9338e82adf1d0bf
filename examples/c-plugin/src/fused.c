/* A fused op, as yours will be added: a row in the table, a check, and the loop that becomes a kernel. Part of ops.c; tests/fused.c is its test.
 * Softmax in one pass over a row for the maximum, one for the sum and one for the results, where the core would launch five ops. */
static cw_status check_softmax(cw_op op, cw_error *err) {
  NEED(op->v->rank && same_shape(op->v, op->v + 1), CW_E_INVALID, "softmax_fwd: the shapes differ, or there is no last dim");
  return CW_OK;
}
static void run_softmax(const struct launch *l) {
  const view *y = l->op->v, *x = y + 1;
  int64_t n = y->shape[y->rank - 1];
  LOOP(row, y->count ? y->count / n : 0) {
    float most = -INFINITY;
    double sum = 0;
    LOOP(i, n) {
      float v = get_float(x->dtype, l->at[1] + to(x, row * n + i));
      if (v > most || v != v) most = v; /* a NaN stays: nothing is larger */
    }
    LOOP(i, n) sum += exp((double)get_float(x->dtype, l->at[1] + to(x, row * n + i)) - (double)most);
    LOOP(i, n) {
      double e = exp((double)get_float(x->dtype, l->at[1] + to(x, row * n + i)) - (double)most);
      put_float(y->dtype, l->at[0] + (row * n + i) * y->size, (float)(e / sum));
    }
  }
}
