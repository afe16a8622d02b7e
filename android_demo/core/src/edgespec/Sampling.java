package edgespec;

import java.util.Map;
import java.util.TreeMap;

/**
 * The settings of a request that change the target's probabilities, as BEGIN carries them. The
 * defaults are greedy decoding; edgespec.SamplingParams describes each field.
 */
final class Sampling {
    double temperature = 0;
    double topP = 1;
    double minP = 0;
    double repetitionPenalty = 1;
    double presencePenalty = 0;
    double frequencyPenalty = 0;
    int topK = 0;
    /** Number of likeliest tokens to report with each token, or -1 for no log-probabilities. */
    int logprobs = -1;
    final TreeMap<Integer, Double> bias = new TreeMap<Integer, Double>();

    void write(FrameWriter out) {
        out.f64(temperature);
        out.f64(topP);
        out.f64(minP);
        out.f64(repetitionPenalty);
        out.f64(presencePenalty);
        out.f64(frequencyPenalty);
        out.varint(topK);
        out.varint(logprobs + 1);
        out.varint(bias.size());
        for (Map.Entry<Integer, Double> one : bias.entrySet()) {
            out.varint(one.getKey());
            out.f64(one.getValue());
        }
    }

    static Sampling read(FrameReader in) throws ProtocolException {
        Sampling found = new Sampling();
        found.temperature = in.f64();
        found.topP = in.f64();
        found.minP = in.f64();
        found.repetitionPenalty = in.f64();
        found.presencePenalty = in.f64();
        found.frequencyPenalty = in.f64();
        found.topK = in.number();
        found.logprobs = in.number(1 << 16) - 1;
        int n = in.count(9);
        int before = -1;
        for (int i = 0; i < n; i++) {
            int id = in.number();
            double value = in.f64();
            if (id <= before || Double.isNaN(value)) {
                throw new ProtocolException("a logit_bias in a frame is out of order, or not a number");
            }
            found.bias.put(id, value);
            before = id;
        }
        found.check();
        return found;
    }

    private void check() throws ProtocolException {
        require("temperature", temperature, 0, Double.MAX_VALUE);
        require("top_p", topP, Double.MIN_VALUE, 1);
        require("min_p", minP, 0, 1);
        require("repetition_penalty", repetitionPenalty, Double.MIN_VALUE, Double.MAX_VALUE);
        require("presence_penalty", presencePenalty, -100, 100);
        require("frequency_penalty", frequencyPenalty, -100, 100);
        require("logprobs", logprobs, -1, 100);
    }

    private static void require(String name, double value, double low, double high)
            throws ProtocolException {
        if (!(value >= low && value <= high)) {
            throw new ProtocolException("sampling settings in a frame: " + name + " is " + value
                    + ", which is not between " + low + " and " + high);
        }
    }
}
