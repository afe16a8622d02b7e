package edgespec;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** Reads the files in tests/data/ that Python's tests write and both languages must agree with. */
final class Vectors {
    private Vectors() {}

    /** Reads tests/data/NAME in the repository that contains the working directory. */
    static JSONObject read(String name) throws IOException, JSONException {
        File folder = new File("").getAbsoluteFile();
        while (folder != null && !new File(folder, "tests/data/" + name).exists()) {
            folder = folder.getParentFile();
        }
        if (folder == null) {
            throw new IOException("tests/data/" + name + " is in no folder above the working directory");
        }
        return new JSONObject(Files.readString(new File(folder, "tests/data/" + name).toPath()));
    }

    static List<JSONObject> objects(JSONObject from, String name) throws JSONException {
        JSONArray array = from.getJSONArray(name);
        List<JSONObject> found = new ArrayList<>();
        for (int i = 0; i < array.length(); i++) {
            found.add(array.getJSONObject(i));
        }
        return found;
    }

    static int[] ints(JSONObject from, String name) throws JSONException {
        JSONArray array = from.getJSONArray(name);
        int[] found = new int[array.length()];
        for (int i = 0; i < found.length; i++) {
            found[i] = array.getInt(i);
        }
        return found;
    }

    static byte[] bytes(String hex) {
        byte[] found = new byte[hex.length() / 2];
        for (int i = 0; i < found.length; i++) {
            found[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return found;
    }
}
