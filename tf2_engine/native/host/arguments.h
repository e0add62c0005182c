// Reads several attributes, or several lists of tensors, of an op at once.

#pragma once

#include "tensorflow/core/framework/op_kernel.h"

namespace estimator_bridge {

// Args: names of attributes, each followed by a pointer for its value.
template <class Value, class... More>
absl::Status GetAttributes(tensorflow::OpKernelConstruction* construction, const char* name,
                           Value* value, More... more) {
  absl::Status status = construction->GetAttr(name, value);
  if constexpr (sizeof...(more) > 0) status.Update(GetAttributes(construction, more...));
  return status;
}

inline absl::Status GetList(tensorflow::OpKernelContext* context, const char* name,
                            tensorflow::OpInputList* list) {
  return context->input_list(name, list);
}
inline absl::Status GetList(tensorflow::OpKernelContext* context, const char* name,
                            tensorflow::OpOutputList* list) {
  return context->output_list(name, list);
}

// Args: names of lists of inputs or outputs, each followed by a pointer for the list.
template <class List, class... More>
absl::Status GetLists(tensorflow::OpKernelContext* context, const char* name, List* list,
                      More... more) {
  absl::Status status = GetList(context, name, list);
  if constexpr (sizeof...(more) > 0) status.Update(GetLists(context, more...));
  return status;
}

}  // namespace estimator_bridge
