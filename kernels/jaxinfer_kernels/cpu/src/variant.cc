// The kernels for one set of instructions: compiled once for each, with its flags and JAXINFER_VARIANT, its name.
#include "attention.h"
#include "kernels.h"
#include "product.h"

#define JAXINFER_TEXT_(name) #name
#define JAXINFER_TEXT(name) JAXINFER_TEXT_(name)
#define JAXINFER_TABLE_(name) kernels_##name
#define JAXINFER_TABLE(name) JAXINFER_TABLE_(name)

namespace jaxinfer {

extern const Kernels JAXINFER_TABLE(JAXINFER_VARIANT);

const Kernels JAXINFER_TABLE(JAXINFER_VARIANT) = {
    JAXINFER_TEXT(JAXINFER_VARIANT),
    multiply,
    multiply_codes,
    nullptr,
    most_queries,
    attention_scratch,
    attend,
};

}  // namespace jaxinfer
