package edgespec;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.util.List;
import java.util.Map;

/** Reads the files in tests/data/ that Python's tests write and both languages must agree with. */
final class Vectors {
    private Vectors() {
    }

    /** Reads tests/data/NAME in the repository that contains the working directory. */
    static Map<?, ?> read(String name) throws IOException {
        File folder = new File("").getAbsoluteFile();
        while (folder != null && !new File(folder, "tests/data/" + name).exists()) {
            folder = folder.getParentFile();
        }
        if (folder == null) {
            throw new IOException("tests/data/" + name + " is in no folder above the working directory");
        }
        byte[] data = Files.readAllBytes(new File(folder, "tests/data/" + name).toPath());
        return (Map<?, ?>) Json.parse(new String(data, FrameWriter.UTF_8));
    }

    static List<?> list(Map<?, ?> map, String name) {
        return (List<?>) map.get(name);
    }

    static long number(Map<?, ?> map, String name) {
        return ((Number) map.get(name)).longValue();
    }

    static double real(Object value) {
        boolean infinite = value instanceof Map; // {"-inf": true}: JSON has no infinity
        return infinite ? Double.NEGATIVE_INFINITY : ((Number) value).doubleValue();
    }

    static int[] ints(List<?> values) {
        int[] found = new int[values.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = ((Number) values.get(i)).intValue();
        }
        return found;
    }

    static byte[] bytes(Object hex) {
        String text = (String) hex;
        byte[] found = new byte[text.length() / 2];
        for (int i = 0; i < found.length; i++) {
            found[i] = (byte) Integer.parseInt(text.substring(2 * i, 2 * i + 2), 16);
        }
        return found;
    }
}
