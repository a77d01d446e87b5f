"""Files of the safetensors format: headers, layout, tensors as views of bytes, and pickles refused; no transfer."""
