"""ONNX folders made from other weights."""
