// For tests: a llama decoder in double precision, written from the formulas, over the tensors of
// the file itself. Shares with the real one only DequantizeRow. Whole prompt at once, no cache, no
// batching: slow and plain.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "model/gguf.h"
#include "model/model_config.h"
#include "quant/weight_type.h"

namespace kvasir::testing {

class NaiveLlama {
 public:
  using Row = std::vector<double>;
  NaiveLlama(const GgufFile& file, const ModelConfig& config) : file_(file), c_(config) {}

  // Logits of every position.
  std::vector<Row> Run(const std::vector<int32_t>& tokens) const {
    std::vector<Row> x;
    for (const int32_t token : tokens) x.push_back(RowOf("token_embd.weight", token));
    for (int layer = 0; layer < c_.layers; ++layer) Layer("blk." + std::to_string(layer) + ".", x);
    std::vector<Row> logits;
    const Matrix head = Read(c_.tied_output ? "token_embd.weight" : "output.weight");
    for (const Row& row : x)
      logits.push_back(Apply(head, Norm(row, "output_norm.weight"), Bias("output.bias")));
    return logits;
  }

 private:
  using Matrix = std::vector<Row>;

  Row RowOf(const std::string& name, int64_t row) const {
    const GgufTensor& t = *file_.FindTensor(name);
    std::vector<float> out(static_cast<size_t>(t.columns()));
    DequantizeRow(t.type,
                  t.data + t.bytes / static_cast<uint64_t>(t.rows()) * static_cast<uint64_t>(row),
                  out);
    return Row(out.begin(), out.end());
  }
  Matrix Read(const std::string& name) const {
    Matrix m;
    for (int64_t r = 0; r < file_.FindTensor(name)->rows(); ++r) m.push_back(RowOf(name, r));
    return m;
  }
  Row Bias(const std::string& name) const {
    return file_.FindTensor(name) == nullptr ? Row() : RowOf(name, 0);
  }
  static Row Apply(const Matrix& m, const Row& x, const Row& bias) {
    Row y;
    for (size_t r = 0; r < m.size(); ++r) {
      double sum = bias.empty() ? 0 : bias[r];
      for (size_t i = 0; i < x.size(); ++i) sum += m[r][i] * x[i];
      y.push_back(sum);
    }
    return y;
  }
  Row Norm(const Row& x, const std::string& name) const {
    const Row weight = RowOf(name, 0);
    double squares = 0;
    for (const double v : x) squares += v * v;
    const double scale =
        1 / std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(c_.rms_eps));
    Row y(x);
    for (size_t i = 0; i < x.size(); ++i) y[i] *= scale * weight[i];
    return y;
  }
  // Turns neighbouring pairs of the first rope_dims channels of each head.
  void Rope(Row& x, int heads, size_t position) const {
    for (int h = 0; h < heads; ++h) {
      for (int i = 0; i < c_.rope_dims / 2; ++i) {
        double step = std::pow(c_.rope_base, -2.0 * i / c_.rope_dims) / c_.rope_factor;
        if (!c_.rope_divisors.empty())
          step /= static_cast<double>(c_.rope_divisors[static_cast<size_t>(i)]);
        const double angle = static_cast<double>(position) * step;
        double& a = x[static_cast<size_t>(h * c_.k_dim + 2 * i)];
        double& b = x[static_cast<size_t>(h * c_.k_dim + 2 * i + 1)];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
    }
  }
  // Attention of the query at `position` in head h over positions 0..position.
  void Attend(const Row& q, const Matrix& k, const Matrix& v, int h, size_t position,
              Row& out) const {
    const int g = h / (c_.heads / c_.kv_heads);
    Row score(position + 1);
    double most = -1e300;
    for (size_t t = 0; t <= position; ++t) {
      for (int i = 0; i < c_.k_dim; ++i) {
        score[t] +=
            q[static_cast<size_t>(h * c_.k_dim + i)] * k[t][static_cast<size_t>(g * c_.k_dim + i)];
      }
      score[t] /= std::sqrt(static_cast<double>(c_.k_dim));
      most = std::max(most, score[t]);
    }
    double sum = 0;
    for (double& s : score) sum += s = std::exp(s - most);
    for (size_t t = 0; t <= position; ++t) {
      for (int i = 0; i < c_.v_dim; ++i) {
        out[static_cast<size_t>(h * c_.v_dim + i)] +=
            score[t] / sum * v[t][static_cast<size_t>(g * c_.v_dim + i)];
      }
    }
  }
  void Layer(const std::string& p, std::vector<Row>& x) const {
    const Matrix wq = Read(p + "attn_q.weight"), wk = Read(p + "attn_k.weight"),
                 wv = Read(p + "attn_v.weight");
    const Matrix wo = Read(p + "attn_output.weight"), gate = Read(p + "ffn_gate.weight");
    const Matrix up = Read(p + "ffn_up.weight"), down = Read(p + "ffn_down.weight");
    Matrix q, k, v;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row n = Norm(x[t], p + "attn_norm.weight");
      q.push_back(Apply(wq, n, Bias(p + "attn_q.bias")));
      k.push_back(Apply(wk, n, Bias(p + "attn_k.bias")));
      v.push_back(Apply(wv, n, Bias(p + "attn_v.bias")));
      Rope(q[t], c_.heads, t);
      Rope(k[t], c_.kv_heads, t);
    }
    for (size_t t = 0; t < x.size(); ++t) {
      Row attended(static_cast<size_t>(c_.heads * c_.v_dim));
      for (int h = 0; h < c_.heads; ++h) Attend(q[t], k, v, h, t, attended);
      const Row o = Apply(wo, attended, Bias(p + "attn_output.bias"));
      for (size_t i = 0; i < o.size(); ++i) x[t][i] += o[i];
      const Row n = Norm(x[t], p + "ffn_norm.weight");
      Row g = Apply(gate, n, {});
      const Row u = Apply(up, n, {});
      for (size_t i = 0; i < g.size(); ++i) g[i] = g[i] / (1 + std::exp(-g[i])) * u[i];
      const Row d = Apply(down, g, {});
      for (size_t i = 0; i < d.size(); ++i) x[t][i] += d[i];
    }
  }

  const GgufFile& file_;
  const ModelConfig& c_;
};

}  // namespace kvasir::testing
