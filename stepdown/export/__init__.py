"""What leaves for other programs: ONNX graphs, Minari and D4RL data, TensorBoard curves."""
