package android.content.res;

import android.util.DisplayMetrics;
import java.io.File;
import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import javax.xml.parsers.DocumentBuilderFactory;
import org.w3c.dom.Element;
import org.w3c.dom.NodeList;

/** Reads the strings and colours of app/res, found through the R class that aapt generates. */
public class Resources {
    private final Map<String, String> values = new HashMap<>();

    /**
     * Reads the resources.
     *
     * @param folder the folder app/res
     * @param night whether the system's theme is dark
     */
    public Resources(File folder, boolean night) {
        read(new File(folder, "values/strings.xml"));
        read(new File(folder, night ? "values-night/colors.xml" : "values/colors.xml"));
    }

    private void read(File file) {
        try {
            NodeList all = DocumentBuilderFactory.newInstance().newDocumentBuilder().parse(file)
                    .getElementsByTagName("*");
            for (int i = 0; i < all.getLength(); i++) {
                Element value = (Element) all.item(i);
                values.put(value.getTagName() + " " + value.getAttribute("name"), value.getTextContent());
            }
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    private String value(String type, int id) {
        try {
            for (Field field : Class.forName("edgespec.app.R$" + type).getFields()) {
                if (field.getInt(null) == id) {
                    return values.get(type + " " + field.getName());
                }
            }
        } catch (ReflectiveOperationException error) {
            throw new AssertionError(error);
        }
        throw new AssertionError("there is no " + type + " of id " + id);
    }

    public String getString(int id) { return value("string", id); }

    public String getString(int id, Object... arguments) {
        return String.format(Locale.ENGLISH, value("string", id), arguments);
    }

    public int fakeColor(int id) {
        return 0xFF000000 | Integer.parseInt(value("color", id).substring(1), 16);
    }

    public DisplayMetrics getDisplayMetrics() { return new DisplayMetrics(); }
}
