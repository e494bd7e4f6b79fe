// One instruction set's kernels as a table. Every isa/*.cpp includes this file once, compiled with that set's flags.
//
// Nothing in here may instantiate a function of the standard library: the linker keeps one copy of such a function, and
// it could be the one that only newer processors can run. All our own functions live in a namespace per set.
#include "kernels.h"
#include "latent.h"
// clang-format off
#include "ops/math.h"
#include "ops/rows.h"
#include "ops/linear.h"
#include "ops/outliers.h"
#include "ops/planes.h"
#include "ops/codebook.h"
#include "ops/fp8.h"
#include "ops/route.h"
#include "ops/head.h"
#include "ops/rope.h"
#include "ops/e4m3.h"
#include "ops/int4.h"
#include "ops/attention_pages.h"
#include "ops/attention_float.h"
#include "ops/attention_weights.h"
#include "ops/attention_int.h"
#include "ops/attention.h"
#include "ops/head_linear.h"
#include "ops/latent_pages.h"
#include "ops/latent_attention.h"
#include "ops/select.h"
#include "ops/transcode.h"
#include "ops/sampling.h"
// clang-format on

namespace trimaran::TRIMARAN_ISA {

#define TRIMARAN_STRING2(x) #x
#define TRIMARAN_STRING(x) TRIMARAN_STRING2(x)

extern const Kernels kTable;
const Kernels kTable = {TRIMARAN_STRING(TRIMARAN_ISA),
                        kScanRows,
                        prepare,
                        linear,
                        route,
                        begin_shortlist,
                        scan,
                        score_likeliest,
                        rescore,
                        inverse_rms,
                        store_kv,
                        attend,
                        merge_partials,
                        head_linear,
                        store_latent,
                        attend_latents,
                        merge_latents,
                        store_key,
                        score_tokens,
                        choose_tokens,
                        convert_heads,
                        convert_latents,
                        convert_index_keys,
                        glu_rows<silu>,
                        glu_rows<gelu_tanh>,
                        map_rows<gelu>,
                        map_rows<tanh>,
                        add_rows,
                        layer_norm,
                        scan_row,
                        weigh_row,
                        sum_heavy,
                        keep_heavy,
                        part_list};

}  // namespace trimaran::TRIMARAN_ISA
